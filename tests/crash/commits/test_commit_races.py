"""Commits against a caller's open transaction and against the reaper; each race also without its guard."""

from __future__ import annotations

import pytest

from stepwell._core.instance import Claim
from stepwell._store import instances
from stepwell._store.registrations import workers
from stepwell.testing import armed
from tests.support.race import LEASE, NOWHERE, Plain, Race, Session, done, following
from tests.support.waiting import eventually

LOCKED = 41


async def test_a_group_commit_of_100_does_not_wait_for_the_row_a_caller_locked(race: Race) -> None:
    handles = await race.harness.engine.start_many([Plain.child({"by": "a"}, step="b")] * 100)
    caller = await race.session()
    with armed("executor.returned", hold=True) as returned:
        async with race.harness.engine.worker({"default": 100}) as worker:
            await returned.reached(100)
            await caller.begin()
            await caller.lock_row(handles[LOCKED].id)
            returned.release()

            await eventually(lambda: worker.stats.committed == 99)
            assert await race.row(handles[LOCKED].id, "status") == ("executing",)
            assert not await race.is_anybody_waiting()
            await caller.commit()

            results = [await handle.result(timeout=20) for handle in handles]
    assert results == [{"by": "a"}] * 100
    assert (worker.stats.steps, worker.stats.stale) == (100, 0)
    assert {row["fence"] for row in await race.harness.sql("select fence from stepwell.instances")} == {2}


async def test_without_skip_locked_the_whole_group_would_wait_for_that_caller(race: Race) -> None:
    await race.harness.engine.start_many([(Plain, {})] * 3)
    caller, committer = await race.session(), await race.session()
    committer.change("instances/commit", ("for no key update of i skip locked", "for no key update of i"))
    claims = (await race.claim(committer, await race.worker(committer))).claims
    await caller.begin()
    await caller.lock_row(claims[0].id)

    flushing = await race.blocked(committer, race.flush(committer, [done(claim) for claim in claims]))

    assert [await race.row(claim.id, "status") for claim in claims] == [("executing",)] * 3
    await caller.commit()
    assert len(await flushing) == 3


@pytest.mark.parametrize(
    ("guard", "late", "seen"),
    [
        ("i.worker_id = o.worker_id and i.fence = o.fence and ", [], ("executing", "a", '{"by": "start"}', 2)),
        ("", [1], ("runnable", "b", '{"by": "a"}', 3)),
    ],
    ids=["guarded", "unguarded"],
)
async def test_a_late_commit_after_reap_and_reclaim_changes_nothing(
    race: Race, guard: str, late: list[int], seen: tuple[object, ...]
) -> None:
    """Its guard is the fence; without it the late outcome would be written."""
    await race.harness.engine.start(Plain, {"by": "start"})
    frozen, other = await race.session(), await race.session()
    frozen.change("instances/commit", ("i.worker_id = o.worker_id and i.fence = o.fence and ", guard))
    claims = (await race.claim(frozen, await race.worker(frozen))).claims
    await race.end_lease(claims[0].worker_id)
    assert await race.reap(other, claims) == [1]
    assert len((await race.claim(other, await race.worker(other))).claims) == 1

    committed = await race.flush(frozen, [following(claims[0])])

    assert committed == late
    assert await race.row(1, "status", "step", "state::text", "fence") == seen


async def test_a_row_that_is_being_committed_is_not_reaped(race: Race) -> None:
    committer, reaper, claims = await begun_by_a_dead_worker(race)
    await committer.begin()
    assert await race.flush(committer, [following(claims[0])]) == [1]

    assert await race.reap(reaper, claims) == []
    await committer.commit()

    assert await race.reap(reaper, claims) == []
    assert await race.row(1, "status", "step", "attempt", "crashes", "fence") == ("runnable", "b", 0, 0, 2)


async def test_without_skip_locked_a_row_just_committed_would_count_a_crash(race: Race) -> None:
    committer, reaper, claims = await begun_by_a_dead_worker(race)
    reaper.change("instances/reap", ("for no key update of i skip locked", ""))
    await committer.begin()
    await race.flush(committer, [following(claims[0])])

    reaping = await race.blocked(reaper, race.reap(reaper, claims))
    await committer.commit()

    assert await reaping == [1]
    assert await race.row(1, "status", "step", "attempt", "crashes") == ("runnable", "b", 1, 1)


async def test_a_commit_during_the_reap_of_its_row_is_stale(race: Race) -> None:
    committer, reaper, claims = await begun_by_a_dead_worker(race)
    await reaper.begin()
    assert await race.reap(reaper, claims) == [1]

    assert await race.flush(committer, [following(claims[0])]) == []
    await reaper.commit()

    assert await race.flush(committer, [following(claims[0])]) == []
    assert await race.row(1, "status", "step", "attempt", "crashes", "fence") == ("runnable", "a", 1, 1, 1)


@pytest.mark.parametrize(
    ("guard", "given_back"),
    [
        pytest.param(" and i.fence = c.fence", (set(), []), id="with the fence"),
        pytest.param("", ({1}, ["default"]), id="without it, a running claim is taken away"),
    ],
)
async def test_a_late_release_after_a_reap_leaves_the_same_workers_new_claim(
    race: Race, guard: str, given_back: tuple[set[int], list[str]]
) -> None:
    """A worker releases an orphaned claim, and claims the same row again meanwhile."""
    await race.harness.engine.start(Plain, {"by": "start"})
    releaser, other = await race.session(), await race.session()
    releaser.change("instances/release", (" and i.fence = c.fence", guard))
    worker_id = await race.worker(other)
    [old] = (await race.claim(other, worker_id)).claims
    await race.end_lease(worker_id)
    assert await race.reap(other, [old]) == [1]
    [new] = (await race.claim(other, worker_id)).claims

    answer = await instances.release(releaser, worker_id, [(old.id, old.fence, None)])  # type: ignore[arg-type]

    assert new.fence == old.fence + 1
    assert answer == given_back


@pytest.mark.parametrize(("first", "attempt"), [("release", 0), ("reap", 1)])
async def test_of_a_concurrent_release_and_reap_only_the_first_has_an_effect(
    race: Race, first: str, attempt: int
) -> None:
    releaser, reaper, claims = await begun_by_a_dead_worker(race)
    lost = [(claim.id, claim.fence, claim.concurrency_key) for claim in claims]
    leader = releaser if first == "release" else reaper
    await leader.begin()

    if first == "release":
        assert await instances.release(releaser, claims[0].worker_id, lost) == ({1}, ["default"])  # type: ignore[arg-type]
        assert await race.reap(reaper, claims) == []
    else:
        assert await race.reap(reaper, claims) == [1]
        assert await instances.release(releaser, claims[0].worker_id, lost) == (set(), [])  # type: ignore[arg-type]
    await leader.commit()

    assert await race.row(1, "status", "attempt", "crashes") == ("runnable", attempt, attempt)


async def test_a_worker_that_beats_after_the_reaper_found_it_keeps_its_rows(race: Race) -> None:
    reaper, claims = await found_and_then_beaten(race)

    assert await race.reap(reaper, claims) == []
    assert await race.row(1, "status") == ("executing",)


async def test_without_a_recheck_of_its_lease_a_live_worker_would_lose_rows(race: Race) -> None:
    reaper, claims = await found_and_then_beaten(race)
    reaper.change("instances/reap", ("\n    and (w.id is null or w.lease_until <= pg_catalog.now())", ""))

    assert await race.reap(reaper, claims) == [1]
    assert await race.row(1, "status") == ("runnable",)


async def test_a_batch_is_reaped_except_for_the_row_a_caller_locked(race: Race) -> None:
    caller, reaper, claims = await begun_by_a_dead_worker(race, rows=3)
    await caller.begin()
    await caller.lock_row(2)

    assert sorted(await race.reap(reaper, claims)) == [1, 3]
    await caller.commit()

    assert await race.reap(reaper, claims) == [2]


async def test_without_skip_locked_one_locked_row_would_block_a_reapers_batch(race: Race) -> None:
    caller, reaper, claims = await begun_by_a_dead_worker(race, rows=3)
    reaper.change("instances/reap", ("for no key update of i skip locked", "for no key update of i"))
    await caller.begin()
    await caller.lock_row(2)

    reaping = await race.blocked(reaper, race.reap(reaper, claims))

    assert [await race.row(n, "status") for n in (1, 2, 3)] == [("executing",)] * 3
    await caller.commit()
    assert sorted(await reaping) == [1, 2, 3]


async def found_and_then_beaten(race: Race) -> tuple[Session, list[Claim]]:
    """A reaper that has found the claims of a worker, and the worker renews its lease before they are reaped."""
    beater, reaper, claims = await begun_by_a_dead_worker(race)
    finder = await race.worker(reaper)
    await race.harness.sql("update stepwell.workers set steady_since = '-infinity' where id = $1", finder)
    assert [id_ for id_, _, _ in await instances.find_lost(reaper, finder, LEASE)] == [1]
    await workers.beat(beater, claims[0].worker_id, NOWHERE, LEASE, 1, LEASE)
    return reaper, claims


async def begun_by_a_dead_worker(race: Race, rows: int = 1) -> tuple[Session, Session, list[Claim]]:
    """Two sessions, and claims with started steps, of a worker with an expired lease."""
    await race.harness.engine.start_many([(Plain, {"by": "start"})] * rows)
    one, other = await race.session(), await race.session()
    claims = (await race.claim(one, await race.worker(one))).claims
    await race.begin(one, claims)
    await race.end_lease(claims[0].worker_id)
    return one, other, claims
