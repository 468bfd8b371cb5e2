"""Rule 8: a crash re-runs the step; what crashes again and again is kept apart, and ended."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InstanceFailed, Machine, Next, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.worker.dead_workers import abandon, let_reap

OFTEN = timedelta(milliseconds=20)


class Order(Machine):
    """Is done with what its run saw; has a handle that nobody should call."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        seen = await ctx.resources[0].engine.get(ctx.id)
        return Next(self.end, state={"attempt": ctx.attempt, "crashes": seen.crashes})

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        seen = await ctx.resources[0].engine.get(ctx.id)
        return Done([ctx.state["attempt"], ctx.state["crashes"], ctx.attempt, seen.crashes])

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
        return Done("handled")


async def order_harness(make_harness: MakeHarness, **settings: Any) -> Harness:
    resources: list[Harness] = []
    harness = await make_harness([Order], resources=resources, **settings)
    resources.append(harness)
    return harness


async def test_rule_8_a_crashed_step_reruns_with_one_more_attempt_and_no_handle(
    make_harness: MakeHarness,
) -> None:
    """Rule 8: a crash re-runs the step: attempt + 1, handle is not called; the next step counts anew. Scenario 19."""
    h = await order_harness(make_harness)
    order = await h.engine.start(Order)
    await abandon(h, [order])

    async with h.engine.worker() as worker:
        result = await order.result(timeout=30)

    assert result == [1, 1, 0, 0]
    assert worker.stats.reaped == 1


@pytest.mark.parametrize("how", [{"begun": False}, {"begun": True, "waiting": True}])
async def test_rule_8_a_step_that_had_not_started_counts_no_crash(
    make_harness: MakeHarness, how: dict[str, bool]
) -> None:
    """Rule 8: only a row whose step had begun counts a crash: claimed after the last beginning, or still in line."""
    h = await order_harness(make_harness)
    order = await h.engine.start(Order)
    await abandon(h, [order], **how)

    async with h.engine.worker():
        assert await order.result(timeout=30) == [0, 0, 0, 0]


async def test_rule_8_a_step_cut_off_by_a_drain_counts_an_attempt_and_no_crash(make_harness: MakeHarness) -> None:
    """Rules 8 and 27: who left by itself did not crash."""
    h = await order_harness(make_harness)
    order = await h.engine.start(Order)
    await abandon(h, [order], has_left=True)

    async with h.engine.worker():
        assert await order.result(timeout=30) == [1, 0, 0, 0]


async def test_rule_8_crash_suspects_run_one_at_a_time_and_delay_no_other(make_harness: MakeHarness) -> None:
    """Rule 8: from the second crash on it is a suspect and runs one at a time per worker; neighbours run."""
    tally, gate = {"now": 0, "most": 0}, asyncio.Event()

    class Suspect(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            tally["now"] += 1
            tally["most"] = max(tally["most"], tally["now"])
            await gate.wait()
            tally["now"] -= 1
            return Done("cleared")

    class Neighbour(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done("fine")

    h = await make_harness([Suspect, Neighbour])
    handles = await h.engine.start_many([*[Suspect] * 6, *[Neighbour] * 6])
    suspects, neighbours = handles[:6], handles[6:]
    await h.sql("update stepwell.instances set crashes = 2 where machine = 'Suspect'")
    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in neighbours]
        running = tally["now"]
        gate.set()
        cleared = [await handle.result(timeout=30) for handle in suspects]

    assert (results, cleared) == (["fine"] * 6, ["cleared"] * 6)
    assert (running, tally["most"]) == (1, 1)


async def test_rule_8_an_instance_fails_after_max_crashes_with_a_clear_reason(make_harness: MakeHarness) -> None:
    """Rule 8: after max_crashes in a row of one step it fails instead of killing workers for ever. Scenario 21."""
    h = await order_harness(make_harness, max_crashes=3)
    order, neighbour = await h.engine.start_many([Order, Order])
    await h.sql("update stepwell.instances set crashes = 2, attempt = 2 where id = $1", order.id)
    await h.sql("update stepwell.instances set crashes = 1, attempt = 1 where id = $1", neighbour.id)
    await abandon(h, [order, neighbour])

    async with h.engine.worker():
        with pytest.raises(InstanceFailed, match=r"step 'start' ended its worker 3 times in a row \(max_crashes\)"):
            await order.result(timeout=30)
        spared = await neighbour.result(timeout=30)

    ended = await order.get()
    assert (ended.status, ended.crashes, ended.error and ended.error.type) == (Status.FAILED, 3, "CrashLoop")
    assert spared == [2, 2, 0, 0]


async def test_rule_8_a_waiting_client_learns_that_its_instance_crashed_too_often(
    make_harness: MakeHarness,
) -> None:
    """Rule 8: an end by the reaper is an end like any other."""
    h = await order_harness(make_harness, max_crashes=1, reap=OFTEN)
    order = await h.engine.start(Order)
    await abandon(h, [order], host="elsewhere")
    waiting = asyncio.create_task(order.wait(timeout=30))

    async with h.engine.worker():
        await eventually(lambda: h.sql("select from stepwell.instances where watched"))
        await let_reap(h)
        ended = await waiting

    assert ended.status is Status.FAILED


async def test_rule_26_the_reaper_takes_claims_from_a_dead_worker_of_another_host(make_harness: MakeHarness) -> None:
    """Rule 26: the reaper returns every executing row whose worker has no live lease. Scenario 139."""
    h = await order_harness(make_harness, reap=OFTEN)
    order, orphan, key_holder, behind = await h.engine.start_many(
        [Order, Order, Order.child(concurrency_key="k"), Order.child(concurrency_key="k")]
    )
    await abandon(h, [order, key_holder], host="elsewhere")
    buried = await abandon(h, [orphan], host="elsewhere")
    await h.sql("delete from stepwell.workers where id = $1", buried)

    async with h.engine.worker() as worker:
        await let_reap(h)
        results = [await handle.result(timeout=30) for handle in (order, orphan, key_holder, behind)]

    crashed, not_begun = [1, 1, 0, 0], [0, 0, 0, 0]  # what a forgotten worker still claimed could not begin
    assert results == [crashed, not_begun, crashed, not_begun]
    assert worker.stats.reaped == 3


async def test_rule_26_the_reaper_waits_until_its_own_lease_has_held_for_one_lease(make_harness: MakeHarness) -> None:
    """Rule 26: it acts only once its own connection has been up for one lease: an outage buries nobody alive."""
    h = await order_harness(make_harness, reap=OFTEN)
    order = await h.engine.start(Order)
    dead = await abandon(h, [order], host="elsewhere")
    idle = await abandon(h, [], host="elsewhere")

    async with h.engine.worker():
        await eventually(lambda: gone(h, idle))  # a tick has passed: who carries nothing is forgotten
        untouched = await order.get()
        await let_reap(h)
        await order.result(timeout=30)
        await eventually(lambda: gone(h, dead))

    assert (untouched.status, untouched.worker_id) == (Status.EXECUTING, dead)


async def test_rule_26_the_reaper_leaves_a_worker_with_a_live_lease_alone(make_harness: MakeHarness) -> None:
    """Rule 26: whose lease holds is alive, whatever else is known of it. Scenario 142."""
    h = await order_harness(make_harness, reap=OFTEN)
    lived, died = await h.engine.start_many([Order, Order])
    living = await abandon(h, [lived], host="elsewhere", alive=True)
    await abandon(h, [died], host="elsewhere")

    async with h.engine.worker():
        await let_reap(h)
        await died.result(timeout=30)

    assert (await lived.get()).worker_id == living


async def gone(harness: Harness, worker_id: int) -> bool:
    return not await harness.sql("select from stepwell.workers where id = $1", worker_id)
