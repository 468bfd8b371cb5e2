"""Rule 1: an outcome commits only if the row is still this claim's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, Retry, Status, Stop, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

TAKE_AWAY = "update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null where id = $1"


class Race(Machine):
    """Its first run is late: the row is taken from it, and a second run, elsewhere, ends before it does."""

    @step
    async def start(self, ctx: Context[Any]) -> Any:
        runs: list[int] = ctx.resources["runs"]
        runs.append(ctx.fence)
        if len(runs) > 1:
            return Done("second", state={"by": "second"})
        harness: Harness = ctx.resources["harness"]
        await harness.sql(TAKE_AWAY, ctx.id)
        ctx.resources["taken"].set()
        await ctx.resources["gate"].wait()
        return ctx.resources["late"]


class Bumped(Machine):
    """Its first run loses the row to a fence that somebody raised."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        runs: list[int] = ctx.resources["runs"]
        runs.append(ctx.fence)
        if len(runs) == 1:
            await ctx.resources["harness"].sql("update stepwell.instances set fence = fence + 5 where id = $1", ctx.id)
        return Done(len(runs))


async def racing(make_harness: MakeHarness, late: object = None, **settings: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {"runs": [], "gate": asyncio.Event(), "taken": asyncio.Event(), "late": late}
    harness = await make_harness([Race, Bumped], resources=resources, **settings)
    resources["harness"] = harness
    return harness, resources


@pytest.mark.parametrize("late", [Done("late", state={"by": "late"}), Stop("late"), Next("start", priority=9), Retry()])
async def test_rule_1_a_late_outcome_is_dropped_and_counted_as_stale(make_harness: MakeHarness, late: object) -> None:
    """Rule 1: a late worker's outcome is dropped and counted as stale; nothing of it is visible."""
    h, resources = await racing(make_harness, late)
    race = await h.engine.start(Race)

    async with h.another_engine() as engine, h.engine.worker({"default": 1}) as late_worker:
        await resources["taken"].wait()
        async with engine.worker():
            await race.result(timeout=30)
            before = await race.get()
        resources["gate"].set()
        await eventually(lambda: late_worker.stats.stale == 1)

    assert await race.get() == before
    assert (before.status, before.result, before.state) == (Status.DONE, "second", {"by": "second"})
    assert late_worker.stats.committed == 0


async def test_rule_1_another_fence_is_another_claim_of_the_same_worker(
    make_harness: MakeHarness,
) -> None:
    """Rules 1 and 26: the outcome is stale, and the row, in nobody's hands, is returned at a beat and runs again."""
    h, resources = await racing(make_harness, heartbeat=timedelta(milliseconds=20))
    bumped = await h.engine.start(Bumped)

    async with h.engine.worker() as worker:
        result = await bumped.result(timeout=30)

    first, second = resources["runs"]
    assert (result, second >= first + 6) == (2, True)  # a slow claim's answer may come after a beat gave it back
    assert (worker.stats.orphans >= 1, (await bumped.get()).crashes) == (True, 0)
    assert worker.stats.committed == 1  # of its two runs; the other's outcome was stale, or a beat stopped it before


async def test_rule_1_the_fence_grows_with_each_claim_and_each_commit(make_harness: MakeHarness) -> None:
    """Rule 1: the fence grows with each claim and with each commit. Scenario 1."""

    class Trip(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            return Next(self.end, state={"fences": [ctx.fence]})

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done([*ctx.state["fences"], ctx.fence])

    h = await make_harness([Trip], run_ahead=0)
    trip = await h.engine.start(Trip)
    async with h.engine.worker():
        assert await trip.result(timeout=30) == [1, 3]

    assert (await trip.get()).fence == 4
