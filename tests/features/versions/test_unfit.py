"""Rule 9a: rows that this code cannot run wait, visibly and with the reason, and are not failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell import Await, Context, Done, Engine, Hold, Machine, Status, step
from tests.conftest import MakeHarness
from tests.support.waiting import held


class Neighbour(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("ran")


class Order(Machine, version=1):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("version 1")


class NextOrder(Machine, name="Order", version=2):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("version 2")


class Typed(Machine):
    @dataclass
    class State:
        count: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done(ctx.state.count)

    @step
    async def leave(self, ctx: Context[State]) -> Done:
        return Done("left")


class Relaxed(Machine, name="Typed"):
    """The same machine as a later deploy has it: any state, and a step more."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(ctx.state["count"])

    @step
    async def gone(self, ctx: Context[Any]) -> Done:
        return Done("found")


async def test_rule_9a_an_unregistered_version_is_held_with_the_reason(make_harness: MakeHarness) -> None:
    """Rule 9a: an unregistered version: the instance waits, visibly, out of the claim's way. Scenario 163."""
    h = await make_harness([Order, Neighbour])
    order = await h.engine.start(Order)

    async with Engine(h.url, machines=[NextOrder, Neighbour]) as later, later.worker({"default": 1}):
        neighbours = await later.start_many([Neighbour] * 5)
        results = [await neighbour.result(timeout=30) for neighbour in neighbours]
        waiting = await held(order)

    assert results == ["ran"] * 5
    assert (waiting.status, waiting.hold) == (Status.RUNNABLE, Hold.VERSION)
    assert waiting.waiting_for == "no live worker registers Order version 1"


async def test_rule_9a_a_worker_that_registers_the_version_claims_the_row(make_harness: MakeHarness) -> None:
    """Rule 9a: … until a worker can run it, while the one that could not is still there. Scenario 163."""
    h = await make_harness([Order])
    order = await h.engine.start(Order)

    async with Engine(h.url, machines=[NextOrder]) as later, later.worker():
        await held(order)
        async with h.engine.worker():
            ended = await order.wait(timeout=30)

    assert (ended.result, ended.version, ended.attempt) == ("version 1", 1, 0)


async def test_rule_9a_an_instance_at_a_removed_step_is_held_with_the_reason(make_harness: MakeHarness) -> None:
    """Rule 9a: a stored step that no longer exists."""
    h = await make_harness([Typed, Neighbour])
    orphan = await h.engine.start(Typed)
    await h.sql("update stepwell.instances set step = 'gone' where id = $1", orphan.id)
    neighbour = await h.engine.start(Neighbour)

    async with h.engine.worker({"default": 1}):
        ran = await neighbour.result(timeout=30)
        waiting = await held(orphan)

    assert (ran, waiting.status, waiting.hold, waiting.attempt) == ("ran", Status.RUNNABLE, Hold.UNFIT, 0)
    assert "machine 'Typed' has no step 'gone'" in str(waiting.waiting_for)
    assert "(in Typed version 1)" in str(waiting.waiting_for)


async def test_rule_9a_a_state_that_does_not_decode_is_held_with_the_reason(make_harness: MakeHarness) -> None:
    """Rule 9a: a stored state that does not decode; not even handle is asked. Scenario 22."""
    h = await make_harness([Typed, Neighbour])
    broken = await h.engine.start(Typed)
    await h.sql("""update stepwell.instance_data set state = '{"count": "many"}' where id = $1""", broken.id)
    neighbour = await h.engine.start(Neighbour)

    async with h.engine.worker({"default": 1}) as worker:
        ran = await neighbour.result(timeout=30)
        waiting = await held(broken)
        steps = worker.stats.steps

    assert (ran, waiting.status, waiting.hold, steps) == ("ran", Status.RUNNABLE, Hold.UNFIT, 1)
    assert "state.count: expected int, got str" in str(waiting.waiting_for)
    assert waiting.state == {"count": "many"}


async def test_rule_9a_a_worker_with_code_that_fits_claims_the_held_row(make_harness: MakeHarness) -> None:
    """Rule 9a: a bad deploy must not end a million orders: the next deploy runs them."""
    h = await make_harness([Typed])
    orphan, broken = await h.engine.start_many([Typed, Typed])
    await h.sql("update stepwell.instances set step = 'gone' where id = $1", orphan.id)
    await h.sql("""update stepwell.instance_data set state = '{"count": "many"}' where id = $1""", broken.id)
    async with h.engine.worker():
        await held(orphan)
        await held(broken)

    async with Engine(h.url, machines=[Relaxed]) as fixed, fixed.worker():
        results = [await orphan.result(timeout=30), await broken.result(timeout=30)]

    assert results == ["found", "many"]


async def test_rule_9a_an_unfit_backlog_does_not_stop_the_rest(make_harness: MakeHarness) -> None:
    """Rule 9a: out of the claim's way: many of them before one that runs, and one slot."""
    h = await make_harness([Order, Neighbour])
    await h.engine.start_many([Order] * 200)
    neighbour = await h.engine.start(Neighbour)

    async with Engine(h.url, machines=[Neighbour]) as other, other.worker({"default": 1}):
        assert await neighbour.result(timeout=30) == "ran"

    [row] = await h.sql("select count(*) from stepwell.instances where status = 'runnable' and machine = 'Order'")
    assert row["count"] == 200


class Parked(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.awaited))


async def test_rule_9a_an_unreadable_signal_holds_only_its_own_instance(
    make_harness: MakeHarness,
) -> None:
    """Rule 9a: no call stores it, but a direct write into the table can. Those claimed with it run."""
    h = await make_harness([Parked, Neighbour])
    sick, sound = await h.engine.start(Parked), await h.engine.start(Parked)
    neighbours = [await h.engine.start(Neighbour) for _ in range(3)]
    for one in (sick, sound):
        await one.signal("go")
    await h.sql(
        "update stepwell.signals set payload = (repeat('9', 400) || '.5')::jsonb where instance_id = $1", sick.id
    )

    async with h.engine.worker():
        results = [await one.result(timeout=20) for one in (*neighbours, sound)]
        waiting = await held(sick)

    assert results == ["ran", "ran", "ran", 1]
    assert (waiting.status, waiting.hold) == (Status.RUNNABLE, Hold.UNFIT)
    assert "cannot be read" in str(waiting.hold_reason)
