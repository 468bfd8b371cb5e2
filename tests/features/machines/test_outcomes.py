"""Rules 2, 3 and 6: what each outcome does, seen through the public API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InstanceFailed, Machine, Next, Retry, Status, Stop, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import held


class Trip(Machine):
    """Fails twice at `start`, then continues; notes the attempt of every run."""

    @dataclass
    class State:
        runs: list[str]

    @step
    async def start(self, ctx: Context[State]) -> Next | Retry:
        ctx.state.runs.append(f"start {ctx.attempt}")
        return Retry() if ctx.attempt < 2 else Next(self.end)

    @step
    def end(self, ctx: Context[State]) -> Done:
        ctx.state.runs.append(f"end {ctx.attempt}")
        return Done(ctx.state.runs)


async def test_rule_2_next_continues_at_its_step_with_attempt_zero(make_harness: MakeHarness) -> None:
    """Rule 2: Next: step, state, attempt = 0, runnable now. Scenarios 2 and 3."""
    h = await make_harness([Trip])
    trip = await h.engine.start(Trip, {"runs": []})

    async with h.engine.worker():
        runs = await trip.result(timeout=30)

    assert runs == ["start 0", "start 1", "start 2", "end 0"]


async def test_rule_2_next_is_committed_before_execution_proceeds(make_harness: MakeHarness) -> None:
    """Rule 2 and the one guarantee: the next step finds its own start committed."""
    seen: list[Any] = []

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            return Next("ship", state={"paid": True})

        @step
        async def ship(self, ctx: Context[Any]) -> Done:
            seen.append(await h.engine.get(ctx.id))
            return Done()

    h = await make_harness([Order])
    order = await h.engine.start(Order, {"paid": False})
    async with h.engine.worker():
        await order.result(timeout=30)

    assert (seen[0].step, seen[0].status, seen[0].state) == ("ship", Status.EXECUTING, {"paid": True})


async def test_rule_2_next_moves_to_another_queue_and_priority(make_harness: MakeHarness) -> None:
    """Rule 2: Next carries queue= and priority=, and leaves them alone when they are not given."""

    class Parcel(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            return Next(self.fly, queue="air", priority=-7)

        @step
        async def fly(self, ctx: Context[Any]) -> Next:
            return Next(self.land)

        @step
        async def land(self, ctx: Context[Any]) -> Done:
            return Done()

    h = await make_harness([Parcel])
    parcel = await h.engine.start(Parcel, priority=3)
    async with h.engine.worker({"default": 5, "air": 5}):
        applied = await parcel.wait(timeout=30)

    assert (applied.step, applied.queue, applied.priority) == ("land", "air", -7)


async def test_rule_3_retry_keeps_the_step_and_raises_the_attempt(make_harness: MakeHarness) -> None:
    """Rule 3: Retry: same step, attempt + 1, runnable after the delay. Scenario 4."""

    class Patient(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Retry:
            return Retry(timedelta(hours=1), state={"asked": ctx.attempt + 1})

    h = await make_harness([Patient])
    patient = await h.engine.start(Patient, concurrency_key="k", priority=4, queue="slow")
    async with h.engine.worker({"slow": 1}) as worker:
        parked = await held(patient)

    assert (parked.status, parked.step, parked.attempt, parked.state) == ("runnable", "start", 1, {"asked": 1})
    assert (parked.queue, parked.priority, parked.concurrency_key) == ("slow", 4, "k")
    assert str(parked.waiting_for).startswith("its time, ")
    assert worker.stats.steps == 1


async def test_rule_3_the_last_error_is_visible_and_cleared_by_success(
    make_harness: MakeHarness,
) -> None:
    """Rule 3: while it waits for its next attempt an instance shows why the last one failed."""

    class Shaky(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            if ctx.attempt == 0:
                raise ConnectionError("try later")
            return Next(self.end)

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done()

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Retry:
            return Retry(timedelta(hours=1))

    h = await make_harness([Shaky])
    shaky = await h.engine.start(Shaky)
    async with h.engine.worker():
        parked = await held(shaky)
        await h.advance(timedelta(hours=2))
        ended = await shaky.wait(timeout=30)

    assert parked.error is not None
    assert (parked.error.type, parked.error.message) == ("ConnectionError", "try later")
    assert (ended.status, ended.error) == (Status.DONE, None)


async def test_rule_6_done_ends_with_its_result(make_harness: MakeHarness) -> None:
    """Rule 6: Done is terminal. Scenario 5."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done({"paid": [1, 2.5, None, "ü"]})

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker() as worker:
        result = await order.result(timeout=30)
        ended = await order.get()

    assert result == {"paid": [1, 2.5, None, "ü"]}
    assert (ended.status, ended.worker_id, worker.stats.steps) == (Status.DONE, None, 1)
    assert ended.finished_at is not None


async def test_rule_6_stop_fails_for_its_reason(make_harness: MakeHarness) -> None:
    """Rule 6: Stop is terminal, with the reason in words. Scenario 6."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Stop:
            return Stop("payment never came")

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        with pytest.raises(InstanceFailed, match=r"Order #\d+ failed at step 'start': Stop: payment never came") as c:
            await order.result(timeout=30)

    ended = await order.get()
    assert (c.value.id, c.value.step, c.value.message) == (order.id, "start", "payment never came")
    assert (ended.status, ended.error and ended.error.message) == (Status.FAILED, "payment never came")


async def test_rule_6_a_terminal_outcome_keeps_the_state_it_changed(make_harness: MakeHarness) -> None:
    """Rule 6: every outcome commits the state, a terminal one if it changed."""

    class Order(Machine):
        @dataclass
        class State:
            count: int = 0

        @step
        async def start(self, ctx: Context[State]) -> Done | Stop:
            ctx.state.count += 1
            return Done() if ctx.state.count == 1 else Stop("twice", state=Order.State(99))

    h = await make_harness([Order])
    done = await h.engine.start(Order)
    stopped = await h.engine.start(Order, {"count": 1})
    async with h.engine.worker():
        states = [(await handle.wait(timeout=30)).state for handle in (done, stopped)]

    assert states == [{"count": 1}, {"count": 99}]


async def test_outcomes_of_every_kind_are_committed_in_one_batch(make_harness: MakeHarness) -> None:
    """Scenario 9."""
    outcomes = {
        "next": Next("end", delay=timedelta(hours=1)), "retry": Retry(timedelta(hours=1)), "done": Done(),
        "stop": Stop("no"),
    }  # fmt: skip

    class Mixed(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Any:
            return outcomes[ctx.state["kind"]]

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done()

    h = await make_harness([Mixed])
    handles = await h.engine.start_many([(Mixed, {"kind": kind}) for kind in outcomes])
    with armed("executor.returned", hold=True) as returned, armed("committer.committed") as committed:
        async with h.engine.worker():
            await returned.reached(4)
            returned.release()
            await committed.reached()

    applied = [await handle.get() for handle in handles]
    assert [(s.status, s.step, s.attempt) for s in applied] == [
        ("runnable", "end", 0), ("runnable", "start", 1), ("done", "start", 0), ("failed", "start", 0),
    ]  # fmt: skip
    assert len(committed.facts) == 1
