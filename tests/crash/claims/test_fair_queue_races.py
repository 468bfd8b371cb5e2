"""A queue that becomes fair, or stops being fair, against starts, claims and commits on a second connection."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._core.instance import Claim
from stepwell._core.start_request import admit_many
from stepwell._store import instances
from stepwell._store.operations import start
from stepwell._store.operations.claim import claim_fair
from stepwell._store.registrations import queues
from tests.support.claims import request
from tests.support.race import Plain, Race, Session, following

FAIR, PLAIN = {"default": "tenant"}, {"default": None}
# The claim waits for the test between its snapshot and its first row lock.
GATE = (
    "select stepwell._may_claim($2) as is_open",
    "select stepwell._may_claim($2) and pg_advisory_lock_shared(1) is not null as is_open",
)


async def claim(race: Race, session: Session, limit: int = 100) -> list[Claim]:
    return (await claim_fair(session, request(await race.worker(session), limit, race._labels))).claims


async def share(race: Race, instance_id: int) -> int | None:
    [found] = await race.row(instance_id, "share")
    return found  # type: ignore[no-any-return]  # the column's type


async def test_a_start_that_did_not_see_the_queue_become_fair_is_claimed(race: Race) -> None:
    """The snapshot of the start is older than the declaration; its commit is later."""
    starter, worker = await race.session(), await race.session()
    entries = admit_many(race.harness.engine._registry, [Plain], tenant="", max_payload=10_000)
    await starter.begin()
    [started] = await start.start(starter, entries)

    await queues.declare(worker, FAIR)
    assert await queues.migrate(worker, ["default"]) == []
    await starter.commit()

    tick = await instances.wake_due(worker, ["default"])
    assert (tick.fair, tick.misplaced, tick.ready) == (["default"], ["default"], ["default"])
    assert [c.id for c in await claim(race, worker)] == [started.id]  # not migrated yet, and found


async def test_without_a_read_of_rows_not_migrated_a_fair_claim_would_miss_them(race: Race) -> None:
    await race.harness.engine.start(Plain, {})
    session = await race.session()
    session.change("fair_queues/claim", ("limit $3 - (select count(*) from shared)", "limit 0"))
    await queues.declare(session, FAIR)

    assert await claim(race, session) == []


async def test_a_row_executing_while_its_queue_stops_being_fair_is_claimed_again(race: Race) -> None:
    session = await race.session()
    await queues.declare(session, FAIR)
    await race.harness.engine.start(Plain, {})
    [held] = await claim(race, session)

    await queues.declare(session, PLAIN)
    assert (await instances.wake_due(session, ["default"])).fair == []
    assert await race.flush(session, [following(held)]) == [held.id]

    tick = await instances.wake_due(session, ["default"])
    assert (tick.fair, tick.misplaced) == (["default"], ["default"])  # claimed as before, until it is brought over
    assert await queues.migrate(session, ["default"]) == ["default"]
    worker = await race.worker(session)
    assert [c.id for c in (await race.claim(session, worker)).claims] == [held.id]
    assert (await instances.wake_due(session, ["default"])).fair == []


async def test_concurrent_migrations_of_a_queue_take_different_rows_unblocked(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 1_500)
    one, other = await race.session(), await race.session()
    await queues.declare(one, FAIR)
    await one.begin()

    first = await queues.migrate(one, ["default"])
    second = await asyncio.wait_for(queues.migrate(other, ["default"]), 30)

    await one.commit()
    assert (len(first), len(second)) == (1_000, 500)
    assert await queues.migrate(other, ["default"]) == []


@pytest.mark.parametrize("limit", [1, 10])
async def test_a_claim_skips_rows_under_migration_and_finds_them_afterwards(
    race: Race, limit: int
) -> None:
    handles = await race.harness.engine.start_many([Plain] * 3)
    one, other = await race.session(), await race.session()
    await queues.declare(one, FAIR)
    await one.begin()
    await queues.migrate(one, ["default"])

    during = await asyncio.wait_for(claim(race, other, limit), 30)
    await one.commit()
    after = [*await claim(race, other, limit), *await claim(race, other, 10)]

    assert during == []
    assert sorted(c.id for c in after) == sorted(handle.id for handle in handles)


async def test_a_claim_with_a_snapshot_before_the_migration_takes_no_row_twice(race: Race) -> None:
    handle = await race.harness.engine.start(Plain, {})
    one, other = await race.session(), (await race.session()).change("fair_queues/claim", GATE)
    await queues.declare(one, FAIR)
    await one.connection.execute("select pg_advisory_lock(1)")
    claiming = await race.blocked(other, claim(race, other))

    assert await queues.migrate(one, ["default"]) == ["default"]
    first = await claim(race, one)
    await one.connection.execute("select pg_advisory_unlock(1)")

    assert [c.id for c in first] == [handle.id]
    assert await claiming == []


async def test_a_pause_waits_for_a_running_fair_claim(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    operator, claimer = await race.session(), await race.session()
    await queues.declare(operator, FAIR)
    await queues.migrate(operator, ["default"])
    await claimer.begin()
    assert len(await claim(race, claimer, 1)) == 1

    pausing = await race.awaiting_claims(operator, queues.pause(operator, "default", None, None))  # type: ignore[arg-type]
    await claimer.commit()

    assert await pausing
    assert await claim(race, claimer) == []


async def test_the_last_declaration_of_a_fair_queue_wins(race: Race) -> None:
    handle = await race.harness.engine.start(Plain, {})
    one, other = await race.session(), await race.session()
    await one.begin()
    await queues.declare(one, FAIR)

    declaring = await race.blocked(other, queues.declare(other, FAIR))
    await one.commit()

    assert await declaring == []  # the same: nothing to say
    await queues.migrate(one, ["default"])
    assert await share(race, handle.id) is not None
