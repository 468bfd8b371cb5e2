"""Interactions in a drain: sent, replied to by the test's script, and continued."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import CompletionConflict, CompletionTooLate, InvalidReply
from stepwell.testing import NEVER, Harness, Later, Says, Scripted, Twice, explore_crashes
from stepwell.transports import Dispatch, SendFailed, Undeliverable
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense

YES = {"approved": True}
KEYS = {"now": "a key for tokens that is thirty-two bytes"}


async def asking(make_harness: MakeHarness, payments: Scripted, **state: Any) -> tuple[Harness, int]:
    """An expense that asks over "payments", drained."""
    h = await make_harness([Expense, Batch], transports=[payments], token_keys=KEYS)
    handle = await h.engine.start(Expense, {"transport": "payments", **state})
    await h.drain()
    return h, handle.id


async def test_a_drain_sends_replies_and_continues(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Says(YES, actor="ana")])
    h, expense = await asking(make_harness, payments, amount=7)

    await h.assert_done(expense, {"status": "completed", "approved": True, "actor": "ana", "type": "Decision"})
    (dispatch,) = payments.asked
    assert (dispatch.request, dispatch.attempt, dispatch.machine) == ({"amount": 7}, 1, "Expense")
    assert [completion.is_duplicate for completion in payments.completions] == [False]


@pytest.mark.parametrize("by", ["interaction", "correlation", "token"])
async def test_a_reply_may_name_its_interaction_in_each_way(make_harness: MakeHarness, by: Any) -> None:
    """Scenarios 14, 15 and 16."""
    h, expense = await asking(make_harness, Scripted("payments", [Says(YES, by=by)]), token=True)

    await h.assert_done(expense)


async def test_a_reply_that_never_comes_leaves_the_instance_waiting_until_timeout(make_harness: MakeHarness) -> None:
    h, expense = await asking(make_harness, Scripted("payments", [NEVER]), seconds=60)
    await h.assert_waiting(expense)

    assert await h.fire_timeouts() == 1
    await h.drain()

    assert (await h.assert_done(expense)).result["status"] == "timed_out"


async def test_a_late_reply_is_refused(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Later(YES)])
    h, expense = await asking(make_harness, payments, seconds=60)

    await h.advance(timedelta(seconds=61))
    payments.release()
    await h.drain()

    assert (await h.assert_done(expense)).result["status"] == "timed_out"
    assert len(payments.refused) == 1


async def test_a_reply_before_the_timeout_counts_however_late_it_was_released(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Later(YES)])
    h, expense = await asking(make_harness, payments, seconds=60)

    await h.advance(timedelta(seconds=59))
    assert payments.release() == 1
    await h.drain()

    assert (await h.assert_done(expense)).result["status"] == "completed"


async def test_the_same_reply_twice_is_a_duplicate(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Twice(YES)])
    h, expense = await asking(make_harness, payments)

    await h.assert_done(expense)
    assert [completion.is_duplicate for completion in payments.completions] == [False, True]


async def test_a_reply_that_contradicts_the_first_is_refused(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Twice(YES, {"approved": False})])
    h, expense = await asking(make_harness, payments)

    assert (await h.assert_done(expense)).result["approved"] is True
    assert [type(refusal) for refusal in payments.refused] == [CompletionConflict]


async def test_a_wrongly_typed_reply_is_refused_and_the_interaction_stays_open(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [{"approved": "perhaps"}])
    h, expense = await asking(make_harness, payments)
    await h.assert_waiting(expense)
    assert [type(refusal) for refusal in payments.refused] == [InvalidReply]

    await h.engine.complete(interaction=payments.asked[0].interaction_id, reply=YES)
    await h.drain()

    await h.assert_done(expense)


async def test_a_failed_dispatch_is_retried_when_it_is_due(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [SendFailed("down", timedelta(minutes=10)), SendFailed("down"), YES])
    h, expense = await asking(make_harness, payments)
    begun = h.now()
    await h.assert_waiting(expense)

    await h.drain(with_scheduled=True)

    await h.assert_done(expense)
    assert [dispatch.attempt for dispatch in payments.asked] == [1, 2, 3]
    assert len({dispatch.interaction_id for dispatch in payments.asked}) == 1
    assert timedelta(minutes=10, seconds=2) <= h.now() - begun < timedelta(minutes=11)  # as asked, then by backoff


async def test_a_request_that_cannot_be_sent_fails_the_interaction(make_harness: MakeHarness) -> None:
    h, expense = await asking(make_harness, Scripted("payments", [Undeliverable("no such customer")]))

    assert (await h.assert_done(expense)).result["status"] == "failed"


async def test_each_item_is_asked_about_within_its_window(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", lambda dispatch: dispatch.request["number"] * 10)
    h = await make_harness([Batch], transports=[payments])
    batch = await h.engine.start(Batch, {"items": [3, 1, 2, 5, 4], "window": 2, "transport": "payments"})

    await h.drain()

    found = await h.assert_done(batch)
    assert [value for _, _, value in found.result] == [30, 10, 20, 50, 40]
    assert sorted(dispatch.index or 0 for dispatch in payments.asked) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("point", "sendings"), [
    ("dispatcher.claimed", 1), ("dispatcher.sent", 2), ("dispatcher.recorded", 1),
])  # fmt: skip
async def test_an_interaction_of_a_dead_sender_is_sent_again_and_counts_once(
    make_harness: MakeHarness, point: str, sendings: int
) -> None:
    """Scenario 82."""
    payments = Scripted("payments", [YES])
    h = await make_harness([Expense], transports=[payments])
    expense = await h.engine.start(Expense, {"transport": "payments"})

    h.crash(point)
    tally = await h.drain()

    assert tally.crashes == 1
    await h.assert_done(expense)
    assert len(payments.asked) == sendings
    assert len({dispatch.correlation_id for dispatch in payments.asked}) == 1
    assert [completion.is_duplicate for completion in payments.completions].count(False) == 1


async def test_a_crash_around_every_commit_inserts_no_second_interaction() -> None:
    payments = Scripted("payments", [YES])

    async def scenario(h: Harness) -> Any:
        expense = await h.engine.start(Expense, {"transport": "payments", "amount": 3})
        await h.drain()
        return (await expense.get()).result, len({dispatch.interaction_id for dispatch in payments.asked})

    report = await explore_crashes(scenario, machines=[Expense], transports=[payments])

    assert len(report.crashes) == 4


async def test_without_a_script_a_function_decides(make_harness: MakeHarness) -> None:
    def decide(dispatch: Dispatch) -> Any:
        return {"approved": dispatch.request["amount"] < 100}

    h = await make_harness([Expense], transports=[Scripted("payments", decide)])
    small, large = [await h.engine.start(Expense, {"transport": "payments", "amount": n}) for n in (1, 1000)]

    await h.drain()

    assert (await h.assert_done(small)).result["approved"] is True
    assert (await h.assert_done(large)).result["approved"] is False


async def test_with_a_worker_of_its_own_replies_arrive_by_themselves(make_harness: MakeHarness) -> None:
    payments = Scripted("payments", [Later(YES)])
    h = await make_harness([Expense], transports=[payments])
    async with h.engine.worker():
        expense = await h.engine.start(Expense, {"transport": "payments", "seconds": 600})
        await expense.wait(timeout=10, until="settled")
        while not payments.release():
            await h.engine.get(expense.id)  # until it was sent

        assert (await expense.result(timeout=10))["status"] == "completed"


def test_a_late_reply_raises_an_error_of_its_own() -> None:
    assert CompletionTooLate.reason == "late"
