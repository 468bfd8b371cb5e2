"""Rules 16 and 17: a timeout is a wake, not a failure, and needs no poll."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, Machine, Status, Stop, step
from tests.conftest import MakeHarness
from tests.features.signals.machines import told
from tests.support.waiting import eventually

NO_POLL = {"poll": timedelta(seconds=60), "max_poll": timedelta(seconds=60)}
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=120)


class Payment(Machine, initial="wait"):
    """Waits for its payment as long as its state says."""

    @dataclass
    class State:
        timeout: float | None = 3600.0
        needed: int = 1
        again: float | None = None

    @step
    async def wait(self, ctx: Context[State]) -> Await:
        seconds = ctx.state.timeout
        return Await("paid", then=self.decide, timeout=None if seconds is None else timedelta(seconds=seconds))

    @step
    async def decide(self, ctx: Context[State]) -> Done | Stop | Await:
        seconds, ctx.state.again = ctx.state.again, None
        if seconds is not None:
            return Await("paid", then=self.decide, timeout=timedelta(seconds=seconds) if seconds else None)
        if len(ctx.awaited) < ctx.state.needed:
            return Stop(f"payment never came: {told(ctx.awaited)}, attempt {ctx.attempt}")
        return Done(told(ctx.awaited))


async def test_rule_16_a_timeout_wakes_with_nothing_awaited(make_harness: MakeHarness) -> None:
    """Rule 16, Scenario 48: the deadline passes: woken, awaited empty, attempt 0, awaits kept, no deadline left."""
    h = await make_harness([Payment])
    payment = await h.engine.start(Payment)

    async with h.engine.worker():
        parked = await payment.wait(30, until="settled")
        await h.advance(HOUR)
        ended = await payment.wait(30)

    assert parked.deadline is not None
    assert ended.error is not None
    assert ended.error.message == "payment never came: [], attempt 0"
    assert (ended.awaits, ended.deadline, ended.attempt) == (("paid",), None, 0)


async def test_rule_16_a_signal_before_the_deadline_is_a_normal_wake(make_harness: MakeHarness) -> None:
    """Rule 16, Scenario 49: the signal is first; the deadline is cleared with it."""
    h = await make_harness([Payment])
    payment = await h.engine.start(Payment)
    async with h.engine.worker():
        await payment.wait(30, until="settled")

    await payment.signal("paid", 100)
    woken = await payment.get()
    async with h.engine.worker():
        result = await payment.result(30)

    assert (woken.status, woken.deadline, result) == (Status.RUNNABLE, None, [["paid", 100]])


async def test_rule_16_an_await_without_a_timeout_waits_for_a_signal_only(make_harness: MakeHarness) -> None:
    """Rule 16, Scenarios 50 and 51: neither an await without deadline nor one with a later deadline is woken."""
    h = await make_harness([Payment])
    endless = await h.engine.start(Payment, {"timeout": None})
    later = await h.engine.start(Payment, {"timeout": 7200})
    due = await h.engine.start(Payment, {"timeout": 3600})

    async with h.engine.worker():
        for payment in (endless, later, due):
            await payment.wait(30, until="settled")
        await h.advance(HOUR)
        await due.wait(30)
        others = [await endless.get(), await later.get()]

    assert [(other.status, other.deadline is None) for other in others] == [
        (Status.AWAITING_SIGNAL, True), (Status.AWAITING_SIGNAL, False),
    ]  # fmt: skip


async def test_rule_16_a_timeout_wakes_with_the_partial_pack(make_harness: MakeHarness) -> None:
    """Rule 16, Scenario 52: a pack with a timeout: woken with what has arrived."""
    h = await make_harness([Payment])
    payment = await h.engine.start(Payment, {"needed": 2, "again": 1800.0})
    await payment.signal("paid", 1)

    async with h.engine.worker():
        parked = await payment.wait(30, until="settled")
        await h.advance(HOUR)
        ended = await payment.wait(30)

    assert (parked.status, parked.step) == (Status.AWAITING_SIGNAL, "decide")
    assert ended.error is not None
    assert ended.error.message == "payment never came: [['paid', 1]], attempt 0"


async def test_rule_16_a_new_await_replaces_the_deadline(make_harness: MakeHarness) -> None:
    """Rule 16, Scenario 53: awaiting again with another timeout, or with none, replaces the deadline."""
    h = await make_harness([Payment])
    longer = await h.engine.start(Payment, {"timeout": 600, "again": 7200.0})
    endless = await h.engine.start(Payment, {"timeout": 600, "again": 0.0})
    async with h.engine.worker():
        first = await longer.wait(30, until="settled")
        await endless.wait(30, until="settled")
        await longer.signal("paid", 1)
        await endless.signal("paid", 1)
        second, third = [await one.wait(30, until="settled") for one in (longer, endless)]
        await h.advance(HOUR)
        marker = await h.engine.start(Payment, {"timeout": 0.01})
        await marker.wait(30)
        still = await longer.get()

    assert first.deadline is not None
    assert second.deadline is not None
    assert second.deadline - first.deadline > HOUR
    assert (third.deadline, still.status) == (None, Status.AWAITING_SIGNAL)


async def test_rule_17_a_timeout_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17, Scenario 54: with polls of a minute, only the timer can have fired it."""
    h = await make_harness([Payment], **NO_POLL)

    async with h.engine.worker():
        payment = await h.engine.start(Payment, {"timeout": SOON.total_seconds()})
        ended = await payment.wait(30)

    assert ended.status is Status.FAILED


async def test_rule_17_a_deadline_set_before_the_worker_started_fires_too(make_harness: MakeHarness) -> None:
    """Rule 17: a deadline that passed without a worker fires when a worker starts."""
    h = await make_harness([Payment], **NO_POLL)
    payment = await h.engine.start(Payment)
    async with h.engine.worker():
        await payment.wait(30, until="settled")
    await h.advance(HOUR)

    async with h.engine.worker():
        ended = await payment.wait(30)

    assert ended.status is Status.FAILED


async def test_rule_16_a_signal_after_the_timeout_stays_in_the_inbox(make_harness: MakeHarness) -> None:
    """Rule 16: between the timeout's wake and the step, a signal is still in time."""
    h = await make_harness([Payment])
    payment = await h.engine.start(Payment)
    async with h.engine.worker():
        await payment.wait(30, until="settled")
    await h.sql("update stepwell.instances set status = 'runnable', deadline = null where id = $1", payment.id)

    await payment.signal("paid", 100)
    async with h.engine.worker():
        result = await payment.result(30)

    assert result == [["paid", 100]]


async def test_rule_16_many_timeouts_at_once_all_fire(make_harness: MakeHarness) -> None:
    """Rule 16: 1,200 deadlines of one instant are more than one statement takes; all of them fire."""
    h = await make_harness([Payment], **NO_POLL)
    await h.engine.start_many([Payment] * 1_200)

    async def standing(status: str) -> Any:
        [row] = await h.sql("select count(*) = 1200 as all from stepwell.instances where status = $1", status)
        return row["all"]

    async with h.engine.worker():
        await eventually(lambda: standing("awaiting_signal"), 60)
        await h.advance(HOUR)
        await eventually(lambda: standing("failed"), 60)
