"""A simple completion on the fast path, against every change of its interaction, in both orders, by two connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Ask
from stepwell._store import interactions
from stepwell._store.operations.complete import Given, take_fast
from stepwell.errors import CompletionConflict
from tests.support.asked import SOON, Asked
from tests.support.contest import Contestant

WAITS = (["dispatched"], ("waiting", 1, 0, 1), "awaiting_external")
ANSWERED = (["completed"], ("completed", 1, 1, 0), "runnable")


async def take(by: Contestant, *questions: str, reply: str = "1") -> bool:
    """Complete interactions on the fast path; whether all were completed. It waits for no lock."""
    async with asyncio.timeout(20):
        found = await interactions.find(by, [(question, None, "") for question in questions])
        given = [
            Given(found=one, reply=reply, actor=None, token=None, facts=None, is_checked=True, problem=None)
            for one in found.values()
        ]
        taken, settled = await take_fast(by, given)
    assert list(settled.queues) == ["default"] * len(taken)
    return len(taken) == len(questions)


async def state(asked: Asked, instance: int) -> tuple[Any, ...]:
    return await asked.statuses(instance), await asked.unit(instance), await asked.row(instance, "status")


async def operate(asked: Asked, by: Contestant, act: str, instance: int) -> None:
    operating = asked.operating(by)
    if act == "cancel":
        await operating.cancel(instance, None, cascade=True, by=None, tenant=None)
    else:
        await operating.restart(instance, "start", None, None, by=None, tenant=None)


@pytest.mark.parametrize(("act", "then"), [("cancel", "cancelled"), ("restart", "runnable")])
async def test_an_uncommitted_completion_survives_the_operation_that_waits_for_it(
    asked: Asked, act: str, then: str
) -> None:
    answering, operating = await asked.join()
    instance, question = await asked.one(answering)
    await answering.begin()
    assert await take(answering, question)

    waiting = await asked.blocked(operating, operate(asked, operating, act, instance))
    await answering.commit()
    await waiting

    assert await state(asked, instance) == (["completed"], ("completed", 1, 1, 0), then)


@pytest.mark.parametrize(("act", "then"), [("cancel", "cancelled"), ("restart", "runnable")])
async def test_a_fast_completion_during_an_operators_change_is_not_admitted(
    asked: Asked, act: str, then: str
) -> None:
    operating, answering = await asked.join()
    instance, question = await asked.one(answering)
    await operating.begin()
    await operate(asked, operating, act, instance)

    meanwhile = await take(answering, question)
    await operating.commit()
    after = await take(answering, question)

    assert (meanwhile, after) == (False, False)
    assert await state(asked, instance) == (["cancelled"], ("cancelled", 1, 0, 1), then)


async def test_a_fast_completion_is_admitted_after_a_cancel_that_rolled_back(asked: Asked) -> None:
    cancelling, answering = await asked.join()
    instance, question = await asked.one(answering)
    await cancelling.begin()
    await operate(asked, cancelling, "cancel", instance)

    meanwhile = await take(answering, question)
    await cancelling.rollback()

    assert (meanwhile, await state(asked, instance)) == (False, WAITS)
    assert await take(answering, question)


async def test_an_uncommitted_fast_completion_in_time_beats_the_timeout(asked: Asked) -> None:
    """The timeout skips the locked interaction, and finds it completed afterwards."""
    answering, expiring = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await answering.begin()
    assert await take(answering, question)
    await asked.harness.advance(SOON)

    assert await asked.expire(expiring) == (1, 1)
    await answering.commit()

    assert await asked.expire(expiring) == (0, 0)
    assert await state(asked, instance) == ANSWERED


async def test_an_uncommitted_timeout_beats_the_completion(asked: Asked) -> None:
    expiring, answering = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await asked.harness.advance(SOON)
    await expiring.begin()
    assert await asked.expire(expiring) == (1, 0)

    meanwhile = await take(answering, question)
    await expiring.commit()
    after = await take(answering, question)

    assert (meanwhile, after) == (False, False)
    assert await state(asked, instance) == (["timed_out"], ("timed_out", 1, 1, 0), "runnable")


async def test_of_two_concurrent_completions_the_first_is_admitted_at_once(asked: Asked) -> None:
    one, other = await asked.join()
    instance, question = await asked.one(one)
    await one.begin()
    assert await take(one, question)

    assert not await take(other, question, reply="2")
    judged = await asked.blocked(other, asked.complete(other, question, 2))
    await one.commit()

    with pytest.raises(CompletionConflict):
        await judged
    assert await state(asked, instance) == ANSWERED


async def test_the_second_completion_is_admitted_if_the_first_is_rolled_back(asked: Asked) -> None:
    one, other = await asked.join()
    instance, question = await asked.one(one)
    await one.begin()
    assert await take(one, question)
    judged = await asked.blocked(other, asked.complete(other, question, 2))

    await one.rollback()

    assert not (await judged).is_duplicate
    assert await state(asked, instance) == ANSWERED


async def test_two_groups_in_opposite_orders_complete_each_interaction_once(asked: Asked) -> None:
    """Neither group waits for the other."""
    one, other = await asked.join()
    asked_ones = [await asked.one(one) for _ in range(3)]
    first, second, third = (question for _, question in asked_ones)
    await one.begin()
    await other.begin()
    assert await take(one, first)
    assert await take(other, third)

    assert not await take(one, third, second, first)
    assert not await take(other, first, second, third)
    await one.commit()
    await other.commit()

    assert [await state(asked, instance) for instance, _ in asked_ones] == [ANSWERED] * 3


async def test_a_completion_before_the_park_commits_is_admitted_after_it(asked: Asked) -> None:
    parking, answering = await asked.join()
    claim = await asked.claimed(parking)
    await parking.begin()
    await asked.flush(parking, asked.asks(claim, Ask("manual", 1, then="collect", reply=int)))
    [question] = [row["id"] for row in await parking.connection.fetch("select id::text from stepwell.interactions")]

    assert not await take(answering, question)
    await parking.commit()

    assert await take(answering, question)
    assert await state(asked, claim.id) == ANSWERED


async def test_an_uncommitted_completion_ends_before_its_instance_can_park_again(asked: Asked) -> None:
    """Until its commit the instance cannot be claimed, so no other park can come between."""
    answering, parking = await asked.join()
    instance, question = await asked.one(answering)
    await answering.begin()
    assert await take(answering, question)

    assert await asked.claim(parking) == []
    await answering.commit()
    [claim] = await asked.claim(parking)
    await parking.begin()
    await asked.flush(parking, asked.asks(claim, Ask("manual", 2, then="collect", reply=int)))

    assert not await take(answering, question)
    await parking.commit()
    assert not await take(answering, question)
    assert await asked.statuses(instance) == ["completed", "dispatched"]
    assert await take(answering, (await asked.ids(instance))[1])


async def test_an_interaction_locked_by_a_dispatcher_is_completed_once_it_is_sent(asked: Asked) -> None:
    sending, answering = await asked.join()
    instance, question = await asked.one(answering, transport="there")
    worker = (await asked.claimed(sending)).worker_id
    await sending.begin()
    taken = await asked.take(sending, worker)

    meanwhile = await take(answering, question)
    await sending.commit()

    assert (len(taken), meanwhile) == (1, False)
    assert await take(answering, question)
    assert await asked.note(sending, worker, taken) == []
    assert await state(asked, instance) == ANSWERED


async def test_recording_a_dispatch_skips_an_uncommitted_completion(asked: Asked) -> None:
    """After the completion there is nothing left to record."""
    answering, sending = await asked.join()
    instance, question = await asked.one(answering, transport="there")
    worker = (await asked.claimed(sending)).worker_id
    taken = await asked.take(sending, worker)
    await answering.begin()
    assert await take(answering, question)

    assert await asked.note(sending, worker, taken) == [question]
    await answering.commit()

    assert await asked.note(sending, worker, taken) == []
    assert await state(asked, instance) == ANSWERED


async def test_a_completion_during_the_retry_of_its_instance_is_admitted_after_it(asked: Asked) -> None:
    retrying, answering = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await operate(asked, answering, "cancel", instance)
    await asked.harness.advance(SOON)
    await retrying.begin()
    await asked.operating(retrying).retry(instance, None, by=None, tenant=None)

    meanwhile = await take(answering, question)
    await retrying.commit()

    assert (meanwhile, await state(asked, instance)) == (False, WAITS)
    assert await take(answering, question)
    assert await state(asked, instance) == ANSWERED
