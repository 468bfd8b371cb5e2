"""Pausing queues: nothing is claimed, nothing is lost, and the list of queues shows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, InvalidInput, Machine, Next, Spawn, Status, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

NEVER = timedelta(hours=1)
OFTEN = timedelta(milliseconds=10)


@dataclass
class Stage:
    """A gate where orders wait in their first step, and the orders that have reached it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    there: list[int] = field(default_factory=list)


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Next:
        ctx.resources.there.append(ctx.id)
        await ctx.resources.gate.wait()
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("done")


class Waits(Machine, queue="waits"):
    """Parks for a signal, or for a child in another queue."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def spawn(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Order], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("waited")


async def staged(make_harness: MakeHarness, **settings: Any) -> tuple[Harness, Stage]:
    stage = Stage()
    return await make_harness([Order, Waits], resources=stage, **settings), stage


async def test_rule_31_a_paused_queue_is_not_claimed_until_a_resume_wakes_workers(
    make_harness: MakeHarness,
) -> None:
    h, stage = await staged(make_harness, poll=NEVER, max_poll=NEVER)
    stage.gate.set()
    async with h.engine.worker() as worker, h.another_engine() as elsewhere:
        assert await elsewhere.queues.pause("default", reason="the till is broken", by="mia")
        held = [await h.engine.start(Order) for _ in range(3)]
        # by the notification: the worker never polls
        await eventually(lambda: worker._graph.all_queue_slots["default"].is_paused)

        waiting = await held[0].get()
        assert (waiting.status, waiting.fence) == (Status.RUNNABLE, 0)
        assert waiting.waiting_for == "queue 'default' is paused: the till is broken"
        assert await elsewhere.queues.resume("default")
        assert [await handle.result(timeout=30) for handle in held] == ["done"] * 3
        assert (await held[0].get()).waiting_for is None


async def test_running_steps_of_a_paused_queue_commit_and_stop_there(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness, run_ahead=16)
    async with h.engine.worker() as worker:
        order = await h.engine.start(Order)
        await eventually(lambda: stage.there)

        await h.engine.queues.pause("default")
        await eventually(lambda: worker._graph.all_queue_slots["default"].is_paused)
        stage.gate.set()
        await eventually(lambda: worker.running == 0)

        waiting = await order.get()
        assert (waiting.status, waiting.step, waiting.worker_id) == (Status.RUNNABLE, "end", None)
        assert waiting.waiting_for == "queue 'default' is paused"
        await h.engine.queues.resume("default")
        assert await order.result(timeout=30) == "done"


async def test_a_claim_already_sent_when_a_queue_is_paused_finds_nothing(make_harness: MakeHarness) -> None:
    """The notification is lost: the claim is sent all the same, and the statement itself refuses."""
    h, stage = await staged(make_harness, poll=NEVER, max_poll=NEVER)
    with armed("timers.ticked") as ticked, armed("claimer.claimed") as claimed:
        async with h.engine.worker():
            await ticked.reached()  # its one read of the queues has ended
            await h.sql("insert into stepwell.queues (name, paused_at, changed_at) values ('default', now(), now())")
            before = len(claimed.facts)

            order = await h.engine.start(Order)
            facts = await claimed.reached(before + 1)

        assert facts["ids"] == []
        assert (await order.get()).fence == 0
        assert not stage.there


async def test_a_paused_queue_with_work_costs_no_claims(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness, poll=OFTEN, max_poll=OFTEN)
    await h.engine.queues.pause("default")
    await h.engine.start_many([Order] * 20)

    async with h.engine.worker():
        with armed("timers.ticked") as ticked, armed("claimer.before_claim") as claiming:
            await ticked.reached(10)
            await h.engine.start(Order)
            await ticked.reached(20)

        assert claiming.facts == []
        assert not stage.there


async def test_other_queues_continue_during_a_pause(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness)
    stage.gate.set()
    await h.engine.queues.pause("default")

    async with h.engine.worker({"default": 5, "other": 5}):
        order = await h.engine.start(Order, queue="other")

        assert await order.result(timeout=30) == "done"


async def test_prefetched_claims_of_a_paused_queue_are_released(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness, prefetch=5)
    orders = await h.engine.start_many([Order] * 4)
    async with h.engine.worker({"default": 1}) as worker:
        await eventually(lambda: len(worker._graph.all_queue_slots["default"].buffer) == 3)

        await h.engine.queues.pause("default")

        await eventually(lambda: worker.running == 1)
        await eventually(lambda: h.sql("select from stepwell.instances where status = 'runnable' offset 2"))
        stage.gate.set()
        await eventually(lambda: worker.running == 0)
        assert stage.there == [orders[0].id]


async def test_signals_joins_and_delays_make_rows_of_a_paused_queue_runnable(
    make_harness: MakeHarness,
) -> None:
    h, stage = await staged(make_harness)
    async with h.engine.worker({"default": 5, "waits": 5}):
        parked, parent = [await h.engine.start(Waits, step=step_) for step_ in ("start", "spawn")]
        for handle in (parked, parent):
            await handle.wait(until="settled", timeout=30)
        await h.engine.queues.pause("waits")
        delayed = await h.engine.start(Waits, step="end", delay=OFTEN)

        await parked.signal("go")
        stage.gate.set()

        awake = "select from stepwell.instances where queue = 'waits' and status = 'runnable' and hold is null offset 2"
        await eventually(lambda: h.sql(awake))
        await h.engine.queues.resume("waits")
        results = [await handle.result(timeout=30) for handle in (parked, parent, delayed)]
        assert results == ["waited"] * 3


async def test_a_pause_is_kept_for_workers_that_start_later_and_by_a_drain(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness)
    stage.gate.set()
    order = await h.engine.start(Order)
    await h.engine.queues.pause("default")

    drained = await h.drain()

    assert not drained.steps
    await h.engine.queues.resume("default")
    await h.drain()
    await h.assert_done(order, "done")


async def test_queues_are_listed_with_their_waiting_rows(make_harness: MakeHarness) -> None:
    h, stage = await staged(make_harness)
    await h.engine.start_many([Order, Order, Order.child(queue="extra"), Order.child(delay=NEVER)])
    async with h.engine.worker({"default": 1, "idle": 3}):
        await eventually(lambda: stage.there)
        await h.engine.queues.pause("idle", reason="no need", by="ben")

        found = {queue.name: queue for queue in await h.engine.queues.list()}

        assert list(found) == ["default", "extra", "idle", "waits"]
        assert (found["default"].runnable, found["default"].executing, found["default"].held) == (1, 1, 1)
        assert (found["extra"].runnable, found["extra"].executing, found["extra"].held) == (1, 0, 0)
        idle = found["idle"]
        assert (idle.is_paused, idle.paused_by, idle.reason) == (True, "ben", "no need")
        assert not found["default"].is_paused
        stage.gate.set()


async def test_a_second_pause_replaces_the_reason_and_a_second_resume_does_nothing(make_harness: MakeHarness) -> None:
    h, _ = await staged(make_harness)
    queues = h.engine.queues

    paused = [await queues.pause("default", reason="one", by="mia"), await queues.pause("default", reason="two")]
    [found] = [queue for queue in await queues.list() if queue.name == "default"]
    resumed = [await queues.resume("default"), await queues.resume("default")]

    assert (paused, resumed) == ([True, False], [True, False])
    assert (found.reason, found.paused_by) == ("two", None)


@pytest.mark.parametrize(
    ("queue", "options", "problem"),
    [
        ("defualt", {}, r"queue: no queue is called 'defualt'; did you mean 'default'\?"),
        ("", {}, "queue: the queue's name is empty"),
        ("default", {"reason": 5}, "reason: expected a string, got 5"),
        ("default", {"by": "\x00"}, "by: has a NUL character"),
    ],
)
async def test_a_queue_that_cannot_be_paused_is_refused_with_its_name(
    make_harness: MakeHarness, queue: str, options: dict[str, Any], problem: str
) -> None:
    h, _ = await staged(make_harness)

    with pytest.raises(InvalidInput, match=problem):
        await h.engine.queues.pause(queue, **options)


async def test_blocking_code_can_pause_a_queue_too(make_harness: MakeHarness) -> None:
    h, _ = await staged(make_harness)
    queues = h.engine.sync.queues

    def pause() -> list[Any]:
        return [queues.pause("default"), queues.list()[0].is_paused, queues.resume("default")]

    assert await asyncio.to_thread(pause) == [True, True, True]
    await asyncio.to_thread(h.engine.sync.close)
