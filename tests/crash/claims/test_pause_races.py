"""A pause against claims on a second connection; each race also without the guard that decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepwell._store import limits
from stepwell._store.operations.claim import Claimed, claim_full
from stepwell._store.registrations import queues
from tests.support.claims import request
from tests.support.race import Plain, Race, Session

# The claim waits for the test between its snapshot and its read of the pause.
GATE = (
    "(select stepwell._may_claim($2))",
    "(select case when pg_advisory_lock_shared(1) is not null then stepwell._may_claim($2) end)",
)
OWN_SNAPSHOT = (
    "stepwell._may_claim($2)",
    "not exists (select from stepwell.queues q where q.name = $2 and q.paused_at is not null)",
)
SEES_NONE = ("l.granted", "not l.granted")


@pytest.mark.parametrize(
    ("statement", "claim"),
    [("claim", Race.claim), ("claim_fast", Race.claim_fast), ("claim_started_fast", Race.claim_started)],
)
@pytest.mark.parametrize(("changes", "claimed"), [((), 0), ((OWN_SNAPSHOT,), 1)], ids=["as it is", "own snapshot"])
async def test_a_claim_with_a_snapshot_before_the_pause_claims_nothing_after_it(
    race: Race, changes: tuple[tuple[str, str], ...], claimed: int, statement: str,
    claim: Callable[[Race, Session, int], Coroutine[Any, Any, Claimed]],
) -> None:  # fmt: skip
    await race.harness.engine.start(Plain, {})
    operator, claimer = await race.session(), (await race.session()).change(f"instances/{statement}", GATE, *changes)
    worker = await race.worker(claimer)
    await operator.connection.execute("select pg_advisory_lock(1)")
    claiming = await race.blocked(claimer, claim(race, claimer, worker))

    await operator.fetch("queues/pause", "default", None, None)
    await operator.connection.execute("select pg_advisory_unlock(1)")

    assert len((await claiming).claims) == claimed


@pytest.mark.parametrize("does_wait", [True, False], ids=["as it is", "without the wait"])
async def test_when_a_pause_returns_no_claim_is_running(race: Race, *, does_wait: bool) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    claimer, operator = await race.session(), await race.session()
    if not does_wait:
        operator.change("queues/find_claiming", SEES_NONE)
    worker = await race.worker(claimer)
    await claimer.begin()
    assert len((await race.claim(claimer, worker, limit=1)).claims) == 1

    if does_wait:
        pausing = await race.awaiting_claims(operator, queues.pause(operator, "default", None, None))  # type: ignore[arg-type]
    else:  # the claim that began before it commits after it
        pausing = asyncio.create_task(queues.pause(operator, "default", None, None))  # type: ignore[arg-type]
        await pausing

    assert pausing.done() is not does_wait
    await claimer.commit()
    assert await pausing
    assert (await race.claim(claimer, worker)).claims == []


async def test_a_pause_that_waits_for_a_claim_delays_no_other_queue(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    claimer, other, operator = [await race.session() for _ in range(3)]
    worker = await race.worker(claimer)
    await race.harness.sql("update stepwell.instances set queue = 'other' where id in "
                           "(select id from stepwell.instances order by id limit 1)")
    await claimer.begin()
    assert len((await race.claim(claimer, worker, limit=1)).claims) == 1

    pausing = await race.awaiting_claims(operator, queues.pause(operator, "default", None, None))  # type: ignore[arg-type]
    claimed = await claim_full(other, request(worker, 1, ["Plain@1"], queue="other"))

    assert len(claimed.claims) == 1
    assert not pausing.done()
    await claimer.commit()
    assert await pausing


async def test_a_pause_does_not_wait_for_claims_that_began_after_it(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    early, late, operator = [await race.session() for _ in range(3)]
    worker = await race.worker(early)
    await early.begin()
    await race.claim(early, worker, limit=1)
    pausing = await race.awaiting_claims(operator, queues.pause(operator, "default", None, None))  # type: ignore[arg-type]

    await late.begin()
    assert (await race.claim(late, worker)).claims == []
    await early.commit()

    assert await asyncio.wait_for(pausing, 30)
    await late.commit()


async def test_claims_do_not_wait_for_one_another_because_of_pauses(race: Race) -> None:
    await race.harness.engine.start_many([Plain] * 2)
    one, other = await race.session(), await race.session()
    mine, theirs = await race.worker(one), await race.worker(other)
    await one.begin()
    await race.claim(one, mine, limit=1)

    claimed = await asyncio.wait_for(race.claim(other, theirs), 30)

    assert len(claimed.claims) == 1
    await one.commit()


@pytest.mark.parametrize("is_guarded", [True, False], ids=["as it is", "without the guard"])
async def test_a_row_that_reaches_its_limits_after_the_pause_is_not_claimed(race: Race, *, is_guarded: bool) -> None:
    await race.harness.sql("insert into stepwell.limits values ('concurrency', 'few', 5, null, null, '{}')")
    handle = await race.harness.engine.start(Plain, {})
    await race.harness.sql("update stepwell.instances set concurrency_limit = 'few'")
    operator, claimer = await race.session(), await race.session()
    if not is_guarded:
        claimer.change("limits/lock_rows", ("(select stepwell._may_claim($2))", "$2 <> ''"))
    worker = await race.worker(claimer)
    [limited] = (await race.claim(claimer, worker)).limited

    await queues.pause(operator, "default", None, None)
    admitted = await limits.admit(claimer, worker, "default", [limited.id])  # type: ignore[arg-type]  # as a database

    assert [claim.id for claim in admitted.claims] == ([] if is_guarded else [handle.id])
