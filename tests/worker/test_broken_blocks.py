"""A worker whose block ends by an exception: what is cut off counts as a crash, unless it was told to stop before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Handle, Machine, step
from stepwell._worker.running.step_batch import own_task
from stepwell._worker.worker import Worker
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import draining, eventually
from tests.worker.dead_workers import let_reap

Break = Callable[[Worker], Awaitable[None]]


class Gated(Machine):
    """Waits in its first run until it is let through."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        if not ctx.resources["entered"].is_set():
            ctx.resources["entered"].set()
            await ctx.resources["gate"].wait()
        return Done(ctx.attempt)


async def gated(make_harness: MakeHarness, drain_timeout: float) -> tuple[Harness, Handle[Any]]:
    resources = {"entered": asyncio.Event(), "gate": asyncio.Event()}
    h = await make_harness(
        [Gated], resources=resources, max_crashes=1, drain_timeout=timedelta(seconds=drain_timeout),
        reap=timedelta(milliseconds=20),
    )  # fmt: skip
    return h, await h.engine.start(Gated)


async def breaking(h: Harness, how: Break) -> None:
    """A worker whose block ends, by whatever exception, while its step runs."""
    async with h.engine.worker() as worker:
        await h.resources["entered"].wait()
        await how(worker)


async def ended_elsewhere(h: Harness, handle: Handle[Any]) -> tuple[str, Any]:
    """How it ends on another worker, and its result or what it failed by."""
    async with h.another_engine() as other, other.worker():
        await let_reap(h)
        ended = await handle.wait(timeout=30)
    return ended.status, ended.result if ended.error is None else ended.error.type


async def raise_error(worker: Worker) -> None:
    raise ValueError("the block is broken")


async def be_cancelled(worker: Worker) -> None:
    own_task().cancel()
    await asyncio.Event().wait()


async def run_out_of_time(worker: Worker) -> None:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()


async def lose_a_sibling(worker: Worker) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raise_error(worker))


async def stop_and_be_cancelled(worker: Worker) -> None:
    await worker.stop()
    await be_cancelled(worker)


async def be_cancelled_while_it_stops(worker: Worker) -> None:
    stopping = asyncio.create_task(worker.stop())
    await draining(worker)
    worker._stopping = stopping  # type: ignore[attr-defined]  # somebody has to hold the task
    await be_cancelled(worker)


async def exit_process(worker: Worker) -> None:
    raise SystemExit(1)


async def interrupt(worker: Worker) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [raise_error, be_cancelled, run_out_of_time, lose_a_sibling])
async def test_a_step_cut_off_by_a_broken_block_counts_as_a_crash(
    make_harness: MakeHarness, how: Break, caplog: pytest.LogCaptureFixture
) -> None:
    h, handle = await gated(make_harness, drain_timeout=0)

    [error] = await asyncio.gather(asyncio.create_task(breaking(h, how)), return_exceptions=True)

    assert isinstance(error, BaseException)
    assert "as crashes, because an exception ended the worker's block without stop(): Gated.start #" in caplog.text
    assert await ended_elsewhere(h, handle) == ("failed", "CrashLoop")


@pytest.mark.parametrize("how", [stop_and_be_cancelled, be_cancelled_while_it_stops, exit_process, interrupt])
async def test_a_step_cut_off_after_a_stop_counts_as_an_attempt(
    make_harness: MakeHarness, how: Break
) -> None:
    h, handle = await gated(make_harness, drain_timeout=0)

    with suppress(KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        await breaking(h, how)
    while own_task().cancelling():
        own_task().uncancel()

    assert await ended_elsewhere(h, handle) == ("done", 1)


async def test_a_step_that_ends_in_time_after_its_block_broke_is_committed(make_harness: MakeHarness) -> None:
    h, handle = await gated(make_harness, drain_timeout=60)
    workers: list[Worker] = []

    async def break_soon(worker: Worker) -> None:
        workers.append(worker)
        await raise_error(worker)

    broken = asyncio.create_task(breaking(h, break_soon))
    await eventually(lambda: workers and workers[0]._state.is_stopping)
    h.resources["gate"].set()
    await asyncio.wait([broken])

    ended = await handle.get()
    assert (ended.status, ended.result, ended.crashes) == ("done", 0, 0)


async def test_a_worker_that_is_stopped_twice_drains_once_and_both_wait(make_harness: MakeHarness) -> None:
    h, handle = await gated(make_harness, drain_timeout=60)

    async with h.engine.worker() as worker:
        await h.resources["entered"].wait()
        both = [asyncio.create_task(worker.stop()) for _ in range(2)]
        await draining(worker)
        h.resources["gate"].set()
        await asyncio.gather(*both)
        after = await handle.get()

    assert (after.status, after.result) == ("done", 0)
