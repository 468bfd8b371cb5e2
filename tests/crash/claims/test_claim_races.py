"""The claim against others on a second connection; each race also without the guard that decides it."""

from __future__ import annotations

import pytest

from stepwell._core.store_errors import Conflict
from stepwell._store.connection.driver_errors import translated
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations import commit
from tests.support.commits import full_path
from tests.support.race import Plain, Race, Session, done, following
from tests.support.waiting import eventually

# The claim waits for the test between its snapshot and its first row lock.
GATE = ("where i.queue = $2", "where (select pg_advisory_lock_shared(1) is not null) and i.queue = $2")
FOR_UPDATE = (("for no key update skip locked", "for update skip locked"),)
KEY_MERGED = (
    ("when c.concurrency_key is null then case when c.is_limited then 'limited' else 'claimed' end", ""),
    ("distinct on (k.concurrency_key)", "distinct on (coalesce(k.concurrency_key, k.id::text))"),
    ("where k.concurrency_key is not null and", "where"),
    ("order by k.concurrency_key,", "order by coalesce(k.concurrency_key, k.id::text),"),
)


async def test_a_claim_with_an_old_snapshot_runs_on_the_latest_committed_state(
    race: Race,
) -> None:
    await race.harness.engine.start(Plain, {"by": "start"})
    one, other = await race.session(), (await race.session()).change("instances/claim", GATE)
    late = await race.worker(other)
    claiming = await held_at_gate(race, one, other, race.claim(other, late))
    await pass_step_a(race, one)

    await one.connection.execute("select pg_advisory_unlock(1)")
    first = await claiming
    claimed = first if first.claims else await race.claim(other, late)

    assert first.claims or first.missed
    [claim] = claimed.claims
    assert claim.step == "b"
    begun = await race.begin(other, [claim])
    assert begun is not None
    assert begun.states[claim.id] == '{"by": "a"}'


async def test_without_a_second_statement_the_claim_would_read_the_old_state(race: Race) -> None:
    await race.harness.engine.start(Plain, {"by": "start"})
    one, other = await race.session(), await race.session()
    claim = statement("instances/claim").replace(*GATE).replace("i.ctid = j.tid", "i.id = j.id")
    joined = claim.partition(", answers as (")[0] + (
        " select c.step, d.state ->> 'by' as by from claimed c join stepwell.instance_data d on d.id = c.id"
    )
    labels = ["Plain@1"]
    late = await race.worker(other)
    call = other.connection.fetch(joined, late, "default", 10, labels, [])
    claiming = await held_at_gate(race, one, other, call)
    await pass_step_a(race, one)

    await one.connection.execute("select pg_advisory_unlock(1)")

    assert [tuple(row) for row in await claiming] == [("b", "start")]


@pytest.mark.parametrize(("changes", "is_claimed"), [((), True), (FOR_UPDATE, False)], ids=["as it is", "for update"])
async def test_a_row_locked_by_a_foreign_key_check_is_claimed(
    race: Race, changes: tuple[tuple[str, str], ...], is_claimed: bool
) -> None:
    handle = await race.harness.engine.start(Plain, {})
    checker, claimer = await race.session(), await race.session()
    await checker.begin()
    await checker.lock_row(handle.id, "key share")

    claimer.change("instances/claim", *changes)
    claimed = await race.claim(claimer, await race.worker(claimer))

    assert bool(claimed.claims) is is_claimed
    await checker.commit()


@pytest.mark.parametrize(("changes", "busy"), [((), 0), (KEY_MERGED, 1)], ids=["as it is", "merged"])
async def test_a_concurrency_key_that_reads_like_an_id_is_not_taken_for_that_row(
    race: Race, changes: tuple[tuple[str, str], ...], busy: int
) -> None:
    """Scenario 94."""
    plain = await race.harness.engine.start(Plain, {})
    await race.harness.engine.start(Plain, {}, concurrency_key=str(plain.id))
    session = (await race.session()).change("instances/claim", *changes)

    claimed = await race.claim(session, await race.worker(session))

    assert (len(claimed.claims), len(claimed.busy)) == (2 - busy, busy)


async def test_of_two_claims_of_one_concurrency_key_one_wins(race: Race) -> None:
    """Scenario 90."""
    await race.harness.engine.start_many([Plain.child({}, concurrency_key="k")] * 2)
    one, other = await race.session(), await race.session()
    mine, theirs = await race.worker(one), await race.worker(other)
    await one.begin()
    assert len((await race.claim(one, mine, limit=1)).claims) == 1

    losing = await race.blocked(other, race.claim(other, theirs))
    await one.commit()
    with pytest.raises(Conflict), translated():
        await losing

    again = await race.claim(other, theirs)
    assert (len(again.claims), len(again.busy)) == (0, 1)


async def test_without_the_unique_index_two_claims_of_one_key_would_win(race: Race) -> None:
    await race.harness.engine.start_many([Plain.child({}, concurrency_key="k")] * 2)
    await race.harness.sql("drop index stepwell.instances_concurrency_key")
    one, other = await race.session(), await race.session()
    mine, theirs = await race.worker(one), await race.worker(other)
    await one.begin()

    won = [await race.claim(one, mine, limit=1), await race.claim(other, theirs)]

    assert [len(claimed.claims) for claimed in won] == [1, 1]
    await one.commit()


async def test_a_worker_that_loses_a_key_race_logs_nothing_and_runs_the_row_later(
    race: Race, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 90."""
    winner, loser = await race.harness.engine.start_many([Plain.child({}, concurrency_key="k")] * 2)
    session = await race.session()
    await session.begin()
    [claim] = (await race.claim(session, await race.worker(session), limit=1)).claims
    assert claim.id == winner.id

    async with race.harness.engine.worker():
        await eventually(race.is_anybody_waiting)
        await session.commit()
        await eventually(lambda: race.harness.sql("select from stepwell.instances where hold = 'key'"))
        await commit.commit(session, [done(claim)], full_path())  # type: ignore[arg-type]
        assert await loser.result(timeout=20) == {"by": "a"}

    assert caplog.records == []


async def held_at_gate(race: Race, keeper: Session, claimer: Session, call: object) -> object:
    await keeper.connection.execute("select pg_advisory_lock(1)")
    return await race.blocked(claimer, call)  # type: ignore[arg-type]


async def pass_step_a(race: Race, session: Session) -> None:
    [claim] = (await race.claim(session, await race.worker(session))).claims
    assert await race.flush(session, [following(claim)]) == [claim.id]
