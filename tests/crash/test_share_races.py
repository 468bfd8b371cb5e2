"""A queue that becomes fair, or is so no more, against starts, claims and commits on a second connection."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._core.entries import admit_many
from stepwell._core.records import Claim
from stepwell._store import instances, queues, shares
from tests.support.race import Plain, Race, Session, following

FAIR, PLAIN = {"default": "tenant"}, {"default": None}
# The claim waits for the test between its snapshot and its first row lock.
GATE = (
    "select stepwell._may_claim($2) as is_open",
    "select stepwell._may_claim($2) and pg_advisory_lock_shared(1) is not null as is_open",
)


async def claim(race: Race, session: Session, limit: int = 100) -> list[Claim]:
    answer, _ = await shares.claim(session, await race.worker(session), "default", limit, race._labels, turns={})
    return answer.claims


async def share(race: Race, instance_id: int) -> int | None:
    [found] = await race.row(instance_id, "share")
    return found  # type: ignore[no-any-return]  # the column's type


async def test_a_start_that_did_not_see_the_queue_become_fair_is_claimed_and_brought_over(race: Race) -> None:
    """Its snapshot is older than the declaration, its commit is later."""
    starter, worker = await race.session(), await race.session()
    entries = admit_many(race.harness.engine._registry, [Plain], tenant="", max_payload=10_000)
    await starter.begin()
    [started] = await instances.start(starter, entries)

    await queues.declare(worker, FAIR)
    assert await shares.bring_over(worker, ["default"]) == []
    await starter.commit()

    tick = await instances.tick(worker, ["default"])
    assert (tick.fair, tick.misplaced, tick.ready) == (["default"], ["default"], ["default"])
    assert [c.id for c in await claim(race, worker)] == [started.id]  # not brought over, and found all the same


async def test_without_a_look_at_what_is_not_shared_out_a_claim_would_miss_it(race: Race) -> None:
    await race.harness.engine.start(Plain, {})
    session = await race.session()
    session.change("shares/claim", ("limit $3 - (select count(*) from shared)", "limit 0"))
    await queues.declare(session, FAIR)

    assert await claim(race, session) == []


async def test_a_row_that_executes_while_the_queue_ceases_to_be_fair_comes_back_and_is_found(race: Race) -> None:
    session = await race.session()
    await queues.declare(session, FAIR)
    await race.harness.engine.start(Plain, {})
    [held] = await claim(race, session)

    await queues.declare(session, PLAIN)
    assert (await instances.tick(session, ["default"])).fair == []
    assert await race.flush(session, [following(held)]) == [held.id]

    tick = await instances.tick(session, ["default"])
    assert (tick.fair, tick.misplaced) == (["default"], ["default"])  # claimed as before, until it is brought over
    assert await shares.bring_over(session, ["default"]) == ["default"]
    worker = await race.worker(session)
    assert [c.id for c in (await race.claim(session, worker)).claims] == [held.id]
    assert (await instances.tick(session, ["default"])).fair == []


async def test_two_that_bring_rows_over_at_once_take_different_ones_and_wait_for_nobody(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 1_500)
    one, other = await race.session(), await race.session()
    await queues.declare(one, FAIR)
    await one.begin()

    first = await shares.bring_over(one, ["default"])
    second = await asyncio.wait_for(shares.bring_over(other, ["default"]), 30)

    await one.commit()
    assert (len(first), len(second)) == (1_000, 500)
    assert await shares.bring_over(other, ["default"]) == []


@pytest.mark.parametrize("limit", [1, 10])
async def test_a_claim_passes_over_rows_that_are_being_brought_over_and_finds_them_afterwards(
    race: Race, limit: int
) -> None:
    handles = await race.harness.engine.start_many([Plain] * 3)
    one, other = await race.session(), await race.session()
    await queues.declare(one, FAIR)
    await one.begin()
    await shares.bring_over(one, ["default"])

    during = await asyncio.wait_for(claim(race, other, limit), 30)
    await one.commit()
    after = [*await claim(race, other, limit), *await claim(race, other, 10)]

    assert during == []
    assert sorted(c.id for c in after) == sorted(handle.id for handle in handles)


async def test_a_claim_whose_snapshot_is_older_than_the_bringing_over_takes_no_row_twice(race: Race) -> None:
    handle = await race.harness.engine.start(Plain, {})
    one, other = await race.session(), (await race.session()).change("shares/claim", GATE)
    await queues.declare(one, FAIR)
    await one.connection.execute("select pg_advisory_lock(1)")
    claiming = await race.blocked(other, claim(race, other))

    assert await shares.bring_over(one, ["default"]) == ["default"]
    first = await claim(race, one)
    await one.connection.execute("select pg_advisory_unlock(1)")

    assert [c.id for c in first] == [handle.id]
    assert await claiming == []


async def test_a_queue_that_is_paused_while_a_fair_claim_waits_is_not_claimed_from(race: Race) -> None:
    await race.harness.engine.start(Plain, {})
    operator, claimer = await race.session(), await race.session()
    await queues.declare(operator, FAIR)
    await shares.bring_over(operator, ["default"])
    await operator.begin()
    await queues.pause(operator, "default", None, None)

    claiming = await race.blocked(claimer, claim(race, claimer))
    await operator.commit()

    assert await claiming == []


async def test_the_last_declaration_holds_whoever_waits_for_whom(race: Race) -> None:
    handle = await race.harness.engine.start(Plain, {})
    one, other = await race.session(), await race.session()
    await one.begin()
    await queues.declare(one, FAIR)

    declaring = await race.blocked(other, queues.declare(other, FAIR))
    await one.commit()

    assert await declaring == []  # the same: nothing to say
    await shares.bring_over(one, ["default"])
    assert await share(race, handle.id) is not None
