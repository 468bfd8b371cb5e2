"""A pause against claims on a second connection; each race also without the guard that decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepwell._store import limits, queues
from stepwell._store.instances import Claimed
from tests.support.race import Plain, Race, Session
from tests.support.waiting import eventually

# The claim waits for the test between its snapshot and its look at the pause.
GATE = (
    "(select stepwell._may_claim($2))",
    "(select case when pg_advisory_lock_shared(1) is not null then stepwell._may_claim($2) end)",
)
OWN_SNAPSHOT = (
    "stepwell._may_claim($2)",
    "not exists (select from stepwell.queues q where q.name = $2 and q.paused_at is not null)",
)
LOCK = ("pg_advisory_xact_lock(hashtextextended('stepwell queue:' || $1::text, 0))", "$1::text")


@pytest.mark.parametrize(
    ("statement", "claim"),
    [("claim", Race.claim), ("claim_bare", Race.claim_bare), ("claim_at_once", Race.claim_at_once)],
)
@pytest.mark.parametrize(("changes", "claimed"), [((), 0), ((OWN_SNAPSHOT,), 1)], ids=["as it is", "own snapshot"])
async def test_a_claim_whose_snapshot_is_older_than_the_pause_claims_nothing_after_it(
    race: Race, changes: tuple[tuple[str, str], ...], claimed: int, statement: str,
    claim: Callable[[Race, Session, int], Coroutine[Any, Any, Claimed]],
) -> None:  # fmt: skip
    await race.harness.engine.start(Plain, {})
    operator, claimer = await race.session(), (await race.session()).change(f"instances/{statement}", GATE, *changes)
    worker = await race.worker(claimer)
    await operator.connection.execute("select pg_advisory_lock(1)")
    claiming = await race.blocked(claimer, claim(race, claimer, worker))

    await queues.pause(operator, "default", None, None)
    await operator.connection.execute("select pg_advisory_unlock(1)")

    assert len((await claiming).claims) == claimed


@pytest.mark.parametrize("is_locked", [True, False], ids=["as it is", "without the lock"])
async def test_when_a_pause_has_committed_no_claim_is_under_way(race: Race, *, is_locked: bool) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    claimer, operator = await race.session(), await race.session()
    if not is_locked:
        operator.change("queues/pause", LOCK)
    worker = await race.worker(claimer)
    await claimer.begin()
    assert len((await race.claim(claimer, worker, limit=1)).claims) == 1

    pausing = asyncio.create_task(queues.pause(operator, "default", None, None))
    if is_locked:
        await eventually(race.is_anybody_waiting)
    else:
        await pausing  # and the claim that began before it commits after it

    assert pausing.done() is not is_locked
    await claimer.commit()
    assert await pausing
    assert (await race.claim(claimer, worker)).claims == []


async def test_a_claim_that_waits_for_a_pause_claims_nothing(race: Race) -> None:
    await race.harness.engine.start(Plain, {})
    operator, claimer = await race.session(), await race.session()
    worker = await race.worker(claimer)
    await operator.begin()
    await queues.pause(operator, "default", None, None)

    claiming = await race.blocked(claimer, race.claim(claimer, worker))
    await operator.commit()

    assert (await claiming).claims == []
    assert await queues.resume(operator, "default")
    assert len((await race.claim(claimer, worker)).claims) == 1


async def test_claims_do_not_wait_for_one_another_because_of_it(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    one, other = await race.session(), await race.session()
    mine, theirs = await race.worker(one), await race.worker(other)
    await one.begin()
    await race.claim(one, mine, limit=1)

    claimed = await asyncio.wait_for(race.claim(other, theirs), 30)

    assert len(claimed.claims) == 1
    await one.commit()


@pytest.mark.parametrize("is_guarded", [True, False], ids=["as it is", "without the guard"])
async def test_a_row_that_asks_its_limits_after_the_pause_is_not_claimed(race: Race, *, is_guarded: bool) -> None:
    await race.harness.sql("insert into stepwell.limits values ('concurrency', 'few', 5, null, null, '{}')")
    handle = await race.harness.engine.start(Plain, {})
    await race.harness.sql("update stepwell.instances set concurrency_limit = 'few'")
    operator, claimer = await race.session(), await race.session()
    if not is_guarded:
        claimer.change("limits/look", ("(select stepwell._may_claim($2))", "$2 <> ''"))
    worker = await race.worker(claimer)
    [limited] = (await race.claim(claimer, worker)).limited

    await queues.pause(operator, "default", None, None)
    admitted = await limits.admit(claimer, worker, "default", [limited.id])  # type: ignore[arg-type]  # as a database

    assert [claim.id for claim in admitted.claims] == ([] if is_guarded else [handle.id])
