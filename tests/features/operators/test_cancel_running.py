"""Rule 31: cancel of what executes: an async step is stopped, a sync one ends by itself, neither commits anything."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell import Await, Context, Done, Machine, Spawn, Status, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Gated, Gates, Item
from tests.support.waiting import eventually


async def test_rule_31_an_async_step_is_stopped_and_commits_nothing(make_harness: MakeHarness) -> None:
    """Rule 31: the running step gets CancelledError; its row is cancelled before that."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated)

    async with h.engine.worker() as worker:
        await gates.entered.wait()
        changed = await gated.cancel(reason="enough")
        await eventually(lambda: worker.running == 0)
        ended = await gated.get()

    assert (changed, ended.status, ended.result) == (True, Status.CANCELLED, None)
    assert gates.runs == ["run", "cancelled"]


async def test_rule_31_a_step_in_another_process_is_stopped_too(make_harness: MakeHarness) -> None:
    """Rule 31: the notification reaches the worker that runs it."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated)

    async with h.another_engine() as other, other.worker() as worker:
        await gates.entered.wait()
        await h.engine.cancel(gated.id)
        await eventually(lambda: worker.running == 0)

    assert gates.runs == ["run", "cancelled"]


async def test_rule_31_a_sync_step_ends_by_itself_and_commits_nothing(make_harness: MakeHarness) -> None:
    """Rule 31: a thread cannot be stopped; what it returns is dropped."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated, step="run_in_thread")

    async with h.engine.worker() as worker:
        await eventually(gates.thread_entered.is_set)
        await gated.cancel()
        gates.thread_open.set()
        await eventually(lambda: worker.stuck_threads == 0 and worker.running == 0)
        ended = await gated.get()

    assert (ended.status, ended.result) == (Status.CANCELLED, None)
    assert gates.runs == ["run_in_thread", "ended by itself"]


async def test_rule_31_a_step_that_swallows_its_cancellation_commits_nothing(make_harness: MakeHarness) -> None:
    """Rules 1 and 31: its outcome is too late, whatever it is."""
    entered, swallowed = asyncio.Event(), asyncio.Event()

    class Stubborn(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.set()
            return Done("all the same")

    h = await make_harness([Stubborn])
    stubborn = await h.engine.start(Stubborn)

    async with h.engine.worker() as worker:
        await entered.wait()
        await stubborn.cancel()
        await swallowed.wait()
        await eventually(lambda: worker.running == 0)
        ended = await stubborn.get()

    assert (ended.status, ended.result) == (Status.CANCELLED, None)


async def test_rule_31_a_pending_commit_of_a_cancelled_instance_is_dropped_whole(make_harness: MakeHarness) -> None:
    """Rules 1 and 31: cancelled between the step's return and its commit: no children, no state, no consumption."""

    class Busy(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.split)

        @step
        async def split(self, ctx: Context[Any]) -> Spawn:
            ctx.state["changed"] = True
            return Spawn([Item, Item], then=self.start)

    h = await make_harness([Busy, Item])
    busy = await h.engine.start(Busy)
    async with h.engine.worker():
        await busy.wait(30, until="settled")
    await busy.signal("go")

    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker() as worker:
            await committing.reached()
            await busy.cancel()
            committing.release()
            await eventually(lambda: worker.stats.stale == 1)
            ended = await busy.get()

    assert (ended.status, ended.step, ended.state) == (Status.CANCELLED, "split", {})
    assert (await count(h, "instances"), await count(h, "signals")) == (1, 1)


async def test_rule_31_a_cancel_frees_the_concurrency_key(make_harness: MakeHarness) -> None:
    """Rules 22 and 31: the next one behind the key runs as soon as the holder is cancelled."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    holder = await h.engine.start(Gated, concurrency_key="k")

    async with h.engine.worker():
        await gates.entered.wait()
        behind = await h.engine.start(Gated, step="quick", concurrency_key="k")
        await holder.cancel()
        result = await behind.result(30)

    assert result == "quick"


async def test_rule_31_a_cancelled_claim_that_has_not_started_never_runs(make_harness: MakeHarness) -> None:
    """Rule 31: cancelled between claim and start, its step is not called."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated, step="quick")

    with armed("executor.begun", hold=True) as begun:
        async with h.engine.worker() as worker:
            await begun.reached()
            await gated.cancel()
            begun.release()
            await eventually(lambda: worker.running == 0)

    assert gates.runs == []


async def test_rule_31_a_worker_continues_after_a_cancel(make_harness: MakeHarness) -> None:
    """Rule 31: slots are released: one slot, many cancelled steps, and still the next one runs."""
    h = await make_harness([Gated], resources=(gates := Gates()))

    async with h.engine.worker({"default": 1}):
        for _ in range(5):
            gates.entered.clear()
            gated = await h.engine.start(Gated)
            await gates.entered.wait()
            await gated.cancel()
        after = await h.engine.start(Gated, step="quick")
        result = await after.result(30)

    assert result == "quick"
