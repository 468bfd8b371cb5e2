"""Commits against a caller's open transaction and against the reaper; each race also without its guard."""

from __future__ import annotations

import pytest

from stepwell._core.records import Claim
from stepwell._store import instances
from stepwell.testing import armed
from tests.support.race import Plain, Race, Session, done, following
from tests.support.waiting import eventually

LOCKED = 41


async def test_a_flush_of_a_hundred_does_not_wait_for_the_one_row_that_a_caller_holds(race: Race) -> None:
    handles = await race.harness.engine.start_many([Plain.child({"by": "a"}, step="b")] * 100)
    caller = await race.session()
    with armed("executor.returned", hold=True) as returned:
        async with race.harness.engine.worker({"default": 100}) as worker:
            await returned.reached(100)
            await caller.begin()
            await caller.lock_row(handles[LOCKED].id)
            returned.release()

            await eventually(lambda: worker.tally.committed == 99)
            assert await race.row(handles[LOCKED].id, "status") == ("executing",)
            assert not await race.is_anybody_waiting()
            await caller.commit()

            results = [await handle.result(timeout=20) for handle in handles]
    assert results == [{"by": "a"}] * 100
    assert (worker.tally.steps, worker.tally.stale) == (100, 0)
    assert {row["fence"] for row in await race.harness.sql("select fence from stepwell.instances")} == {2}


async def test_without_skip_locked_the_whole_flush_would_wait_for_that_caller(race: Race) -> None:
    await race.harness.engine.start_many([(Plain, {})] * 3)
    caller, flusher = await race.session(), await race.session()
    flusher.change("instances/commit", ("for no key update of i skip locked", "for no key update of i"))
    claims = (await race.claim(flusher, await race.worker(flusher))).claims
    await caller.begin()
    await caller.lock_row(claims[0].id)

    flushing = await race.blocked(flusher, race.flush(flusher, [done(claim) for claim in claims]))

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
async def test_a_late_commit_after_reap_and_reclaim_changes_nothing_thanks_to_its_guard(
    race: Race, guard: str, late: list[int], seen: tuple[object, ...]
) -> None:
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


async def test_a_row_whose_commit_is_under_way_is_not_reaped(race: Race) -> None:
    committer, reaper, claims = await begun_by_a_dead_worker(race)
    await committer.begin()
    assert await race.flush(committer, [following(claims[0])]) == [1]

    assert await race.reap(reaper, claims) == []
    await committer.commit()

    assert await race.reap(reaper, claims) == []
    assert await race.row(1, "status", "step", "attempt", "crashes", "fence") == ("runnable", "b", 0, 0, 2)


async def test_without_skip_locked_a_row_just_committed_would_be_counted_as_a_crash(race: Race) -> None:
    committer, reaper, claims = await begun_by_a_dead_worker(race)
    reaper.change("instances/reap", ("for no key update of i skip locked", ""))
    await committer.begin()
    await race.flush(committer, [following(claims[0])])

    reaping = await race.blocked(reaper, race.reap(reaper, claims))
    await committer.commit()

    assert await reaping == [1]
    assert await race.row(1, "status", "step", "attempt", "crashes") == ("runnable", "b", 1, 1)


async def test_a_commit_that_comes_while_its_row_is_reaped_is_stale(race: Race) -> None:
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
    """A worker gives back what it has not in its hands, and meanwhile claims the same row once more."""
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
async def test_of_a_release_and_a_reap_at_once_only_the_first_has_an_effect(
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


async def test_a_batch_is_reaped_but_for_the_row_that_somebody_holds(race: Race) -> None:
    caller, reaper, claims = await begun_by_a_dead_worker(race, rows=3)
    await caller.begin()
    await caller.lock_row(2)

    assert sorted(await race.reap(reaper, claims)) == [1, 3]
    await caller.commit()

    assert await race.reap(reaper, claims) == [2]


async def test_without_skip_locked_one_held_row_would_keep_a_whole_batch_from_being_reaped(race: Race) -> None:
    caller, reaper, claims = await begun_by_a_dead_worker(race, rows=3)
    reaper.change("instances/reap", ("for no key update of i skip locked", "for no key update of i"))
    await caller.begin()
    await caller.lock_row(2)

    reaping = await race.blocked(reaper, race.reap(reaper, claims))

    assert [await race.row(n, "status") for n in (1, 2, 3)] == [("executing",)] * 3
    await caller.commit()
    assert sorted(await reaping) == [1, 2, 3]


async def begun_by_a_dead_worker(race: Race, rows: int = 1) -> tuple[Session, Session, list[Claim]]:
    """Two sessions, and claims whose steps had begun when their worker's lease ended."""
    await race.harness.engine.start_many([(Plain, {"by": "start"})] * rows)
    one, other = await race.session(), await race.session()
    claims = (await race.claim(one, await race.worker(one))).claims
    await race.begin(one, claims)
    await race.end_lease(claims[0].worker_id)
    return one, other, claims
