"""Rules 6 and 31: an operator runs a failed or cancelled instance again, or a waiting one now."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, Duplicate, Hold, InvalidInput, Machine, Retry, Status, Stop, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import operated
from tests.features.signals.machines import Item, Order, Waiter, told
from tests.support.waiting import held


class Fragile(Machine):
    """Fails at its woken step until its resources say otherwise."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.woken)

    @step
    async def woken(self, ctx: Context[Any]) -> Done | Stop | Retry:
        if ctx.resources:
            return Done([told(ctx.awaited), ctx.attempt, ctx.state])
        if ctx.attempt < 3:
            return Retry()
        return Stop("still broken", state={"tried": ctx.attempt})


async def test_rule_31_a_failed_instance_runs_again_at_its_step(make_harness: MakeHarness) -> None:
    """Rules 6 and 31: attempt 0, the same awaited, the state as it failed; the old error is kept in the note."""
    is_mended: list[bool] = []
    h = await make_harness([Fragile], resources=is_mended)
    fragile = await h.engine.start(Fragile)
    await h.engine.signal_many([(fragile.id, "go", 1), (fragile.id, "other", 2)])

    async with h.engine.worker():
        failed = await fragile.wait(30)
        is_mended.append(True)
        changed = await h.engine.retry(fragile.id, reason="mended", by="ann")
        result = await fragile.result(30)
    note = await operated(h, fragile.id)
    ended = await fragile.get()

    assert (failed.status, failed.attempt, changed) == (Status.FAILED, 3, True)
    assert result == [[["go", 1]], 0, {"tried": 3}]
    assert (note["act"], note["by"], note["reason"], note["error"]["message"]) == (
        "retry", "ann", "mended", "still broken",
    )  # fmt: skip
    assert (ended.error, ended.step) == (None, "woken")


async def test_rule_31_an_instance_cancelled_while_it_awaited_awaits_again(make_harness: MakeHarness) -> None:
    """Rule 31: a cancelled instance continues where it was: parked, until the signal comes."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")
    async with h.engine.worker():
        before = await waiter.wait(30, until="settled")
        await waiter.cancel()
        changed = await h.engine.retry("order:42")
        again = await waiter.get()
        await waiter.signal("go", 7)
        result = await waiter.result(30)

    assert (changed, result) == (True, [["go", 7]])
    assert (again.status, again.awaits, again.deadline) == (before.status, before.awaits, before.deadline)


async def test_rule_31_a_retried_instance_is_live_again(make_harness: MakeHarness) -> None:
    """Rules 18 and 31: it holds its key again, and takes signals."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")
    await waiter.cancel()

    await h.engine.retry(waiter.id)
    with pytest.raises(Duplicate) as caught:
        await h.engine.start(Waiter, key="order:42")
    await h.engine.signal("order:42", "go", 1)
    retried = await waiter.get()
    async with h.engine.worker():
        result = await waiter.result(30)

    assert (caught.value.id, retried.status, retried.finished_at) == (waiter.id, Status.RUNNABLE, None)
    assert result == [["go", 1]]


async def test_rule_6_a_retry_after_its_key_was_occupied_is_a_duplicate(make_harness: MakeHarness) -> None:
    """Rules 6 and 31: another instance holds the key by now: Duplicate with its id, and nothing changes."""
    h = await make_harness([Item, Waiter])
    failed = await h.engine.start(Item, {"ends": "failed"}, key="order:42")
    async with h.engine.worker():
        before = await failed.wait(30)
    successor = await h.engine.start(Waiter, key="order:42")

    for act in (h.engine.retry(failed.id), h.engine.restart(failed.id, step="work")):
        with pytest.raises(Duplicate) as caught:
            await act
        assert (caught.value.id, caught.value.key) == (successor.id, "order:42")

    assert await failed.get() == before


async def test_rule_31_a_waiting_retry_runs_now(make_harness: MakeHarness) -> None:
    """Rule 31: retry now: the attempt count stays, the wait has ended."""

    class Patient(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Retry | Done:
            return Retry(timedelta(days=1)) if ctx.attempt == 0 else Done(ctx.attempt)

    h = await make_harness([Patient])
    patient = await h.engine.start(Patient)

    async with h.engine.worker():
        waiting = await held(patient, attempt=1)
        changed = await h.engine.retry(patient.id)
        result = await patient.result(30)

    assert (waiting.hold, changed, result) == (Hold.DUE, True, 1)


async def test_rule_31_a_delayed_start_runs_now(make_harness: MakeHarness) -> None:
    """Rule 31: also an instance that is not due for the first time yet."""
    h = await make_harness([Item])
    item = await h.engine.start(Item, {"number": 2}, delay=timedelta(days=1))

    async with h.engine.worker():
        await h.engine.retry(item.id)
        result = await item.result(30)

    assert result == 4


async def test_rule_31_a_done_instance_is_not_retried(make_harness: MakeHarness) -> None:
    """Rule 31: done is done; the words say what to do instead."""
    h = await make_harness([Item])
    item = await h.engine.start(Item, {"number": 2})
    async with h.engine.worker():
        before = await item.wait(30)

    with pytest.raises(InvalidInput, match="is done; restart it at a step instead"):
        await h.engine.retry(item.id)

    assert await item.get() == before


async def test_rule_31_a_retry_of_a_running_or_parked_instance_is_refused(make_harness: MakeHarness) -> None:
    """Rule 31: runnable or parked: False, and nothing changes."""
    h = await make_harness([Waiter])
    runnable = await h.engine.start(Waiter, queue="nobody's")
    parked = await h.engine.start(Waiter)
    async with h.engine.worker():
        await parked.wait(30, until="settled")
    before = [await runnable.get(), await parked.get()]

    changed = [await h.engine.retry(one.id) for one in (runnable, parked)]

    assert changed == [False, False]
    assert [await runnable.get(), await parked.get()] == before


async def test_rule_31_a_retried_child_may_fail_again_after_its_parent_continued(make_harness: MakeHarness) -> None:
    """Rules 6 and 31: the parent ended long ago; its child may be retried all the same."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 1, "ends": "failed"}]})
    async with h.engine.worker():
        await order.result(30)
        _, (child, _) = await h.engine.insights.tree(order.id)
        before = await order.get()
        await h.engine.retry(child.id)
        again = await h.engine.wait(child.id, timeout=30)

    assert (again.status, again.fence > child.fence) == (Status.FAILED, True)
    assert await order.get() == before
