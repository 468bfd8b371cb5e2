"""Rule 27: shutdown."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from stepwell import ConcurrencyLimit, Context, Done, Machine, Next, Status, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import draining, eventually, held
from tests.worker.dead_workers import let_reap

OFTEN = timedelta(milliseconds=20)


class Gated(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        if not ctx.resources["entered"].is_set():
            ctx.resources["entered"].set()
            await ctx.resources["gate"].wait()
        return Done(ctx.attempt)

    @step
    async def first(self, ctx: Context[Any]) -> Next:
        ctx.resources["entered"].set()
        await ctx.resources["gate"].wait()
        return Next(self.second)

    @step
    async def second(self, ctx: Context[Any]) -> Done:
        return Done("second")

    @step
    def in_a_thread(self, ctx: Context[Any]) -> Done:
        if ctx.attempt == 0:
            ctx.resources["thread entered"].set()
            ctx.resources["thread gate"].wait(60)
        return Done(ctx.attempt)


async def gated(make_harness: MakeHarness, **settings: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {
        "entered": asyncio.Event(), "gate": asyncio.Event(), "thread entered": threading.Event(),
        "thread gate": threading.Event(),
    }  # fmt: skip
    return await make_harness([Gated], resources=resources, **settings), resources


async def executing(harness: Harness) -> int:
    [row] = await harness.sql("select count(*) from stepwell.instances where status = 'executing'")
    return int(row["count"])


async def test_rule_27_a_drain_releases_unstarted_claims_and_awaits_running_steps(
    make_harness: MakeHarness,
) -> None:
    """Rule 27: release what was claimed but not started, finish what runs within drain_timeout. Scenarios 85, 143."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(seconds=60))
    handles = await h.engine.start_many([Gated] * 6)

    async def open_when_released() -> None:
        await eventually(lambda: is_executing(h, 1))
        resources["gate"].set()

    async with h.engine.worker({"default": 1}, prefetch=5) as worker:
        await resources["entered"].wait()
        await eventually(lambda: is_executing(h, 6))
        opening = asyncio.create_task(open_when_released())
    await opening

    ended = [await handle.get() for handle in handles]
    assert [snapshot.status for snapshot in ended] == [Status.DONE, *[Status.RUNNABLE] * 5]
    assert [(s.attempt, s.crashes, s.worker_id) for s in ended] == [(0, 0, None)] * 6
    assert worker.stats.steps == 1


async def test_rule_27_released_claims_run_elsewhere_at_once(make_harness: MakeHarness) -> None:
    """Rule 27: a released row waits for nobody's lease."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(seconds=60))
    first, *others = await h.engine.start_many([Gated] * 4)

    async with h.another_engine() as engine, AsyncExitStack() as first_worker:
        await first_worker.enter_async_context(h.engine.worker({"default": 1}, prefetch=3))
        await eventually(lambda: is_executing(h, 4))
        async with engine.worker():
            leaving = asyncio.create_task(first_worker.aclose())
            results = [await handle.result(timeout=30) for handle in others]
            resources["gate"].set()
            await leaving

    assert (results, await first.result(timeout=30)) == ([0] * 3, 0)


async def test_rule_27_a_draining_worker_claims_nothing_more(make_harness: MakeHarness) -> None:
    """Rule 27: stop claiming: the step that runs commits its Next, and its next step is for another worker."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(seconds=60))
    handle = await h.engine.start(Gated, step="first")

    async def open_when_draining() -> None:
        await draining(worker)
        resources["gate"].set()

    async with h.engine.worker() as worker:
        await resources["entered"].wait()
        opening = asyncio.create_task(open_when_draining())
    await opening

    left = await handle.get()
    assert (left.step, left.status, left.hold, worker.stats.steps) == ("second", Status.RUNNABLE, None, 1)


async def test_rule_27_a_step_that_does_not_end_in_time_is_left_to_the_reaper(make_harness: MakeHarness) -> None:
    """Rule 27: then leave the rest to the reaper: another worker runs it, as an attempt and not as a crash."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(0), reap=OFTEN)
    handle = await h.engine.start(Gated)
    async with h.engine.worker() as first:
        await resources["entered"].wait()
        first_id = first.id
    left = await handle.get()

    async with h.another_engine() as other, other.worker():
        await let_reap(h)
        result = await handle.result(timeout=30)

    assert (left.status, left.worker_id) == (Status.EXECUTING, first_id)
    assert (result, (await handle.get()).crashes) == (1, 0)


async def test_rule_27_a_reaper_returns_steps_left_by_a_drain_at_once(make_harness: MakeHarness) -> None:
    """Rules 23 and 27: its slot is free as soon as the worker has left, whoever looks, and however seldom he does."""
    h, resources = await gated(
        make_harness, limits=[ConcurrencyLimit("one", 1)], drain_timeout=timedelta(0), reap=timedelta(hours=1)
    )
    async with h.another_engine() as other, AsyncExitStack() as first_worker:
        await first_worker.enter_async_context(h.engine.worker())
        handle = await h.engine.start(Gated, concurrency_limit="one")
        await resources["entered"].wait()
        async with other.worker():
            behind = await h.engine.start(Gated, concurrency_limit="one")
            await held(behind)
            await first_worker.aclose()

            assert [await handle.result(timeout=30), await behind.result(timeout=30)] == [1, 0]


async def test_rule_27_a_sync_step_left_behind_cannot_commit_any_more(make_harness: MakeHarness) -> None:
    """Rules 1 and 27: a thread can not be stopped, but its outcome is dropped."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(0), reap=OFTEN)
    handle = await h.engine.start(Gated, step="in_a_thread")
    async with h.engine.worker() as first:
        await eventually(resources["thread entered"].is_set)
    stuck = first.stuck_threads

    async with h.engine.worker():
        await let_reap(h)
        result = await handle.result(timeout=30)
        before = await handle.get()
        resources["thread gate"].set()
        await eventually(lambda: first.stuck_threads == 0)

    assert (stuck, result, await handle.get()) == (1, 1, before)


async def is_executing(harness: Harness, expected: int) -> bool:
    return await executing(harness) == expected


async def test_rule_27_claims_that_arrive_during_a_drain_are_released(make_harness: MakeHarness) -> None:
    """Rule 27: the claim was sent before the worker began to stop, and is answered after."""
    h, resources = await gated(make_harness, drain_timeout=timedelta(seconds=60))

    handle = await h.engine.start(Gated, step="first")

    with armed("claimer.claimed", hold=True) as claimed:
        async with h.engine.worker() as worker:
            assert (await claimed.reached())["ids"] == [handle.id]
            leaving = asyncio.create_task(worker.stop())
            await draining(worker)
            claimed.release()
            await leaving

    left = await handle.get()
    assert (left.step, left.status, worker.stats.steps) == ("first", Status.RUNNABLE, 0)
    assert not resources["entered"].is_set()
