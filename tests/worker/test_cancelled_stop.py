"""A worker whose stop is cancelled leaves nothing behind in its process."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Handle, Machine, step
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, Scripted, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

SHORT = {"lease": timedelta(seconds=1), "heartbeat": timedelta(seconds=0.2), "reap": timedelta(seconds=0.2)}


class Gated(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources["entered"].set()
        await ctx.resources["gate"].wait()
        return Done("through")


def heartbeats() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stepwell heartbeat"}


async def work(h: Harness, workers: list[Worker]) -> None:
    """Be a worker until the step has begun, and drain."""
    async with h.engine.worker() as worker:
        await h.resources["entered"].wait()
        workers.append(worker)


async def cancelled_stop(make_harness: MakeHarness) -> tuple[Harness, Handle[Any]]:
    """A harness whose worker was cancelled while it drained, and what it ran."""
    resources = {"entered": asyncio.Event(), "gate": asyncio.Event()}
    h = await make_harness([Gated], resources=resources, drain_timeout=timedelta(minutes=10), **SHORT)
    handle = await h.engine.start(Gated)
    workers: list[Worker] = []
    working = asyncio.create_task(work(h, workers))
    await eventually(lambda: workers and workers[0]._state.is_stopping)
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    return h, handle


async def test_a_cancelled_stop_of_a_worker_leaves_no_thread_behind(make_harness: MakeHarness) -> None:
    before = heartbeats()

    await cancelled_stop(make_harness)

    await eventually(lambda: heartbeats() <= before)


async def test_a_step_of_a_cancelled_stop_runs_on_another_worker(make_harness: MakeHarness) -> None:
    h, handle = await cancelled_stop(make_harness)
    h.resources["gate"].set()

    async with h.engine.worker(), asyncio.timeout(30):
        ended = await handle.wait()

    assert ended.result == "through"


async def test_a_late_stop_leaves_no_service_running_when_the_loop_ends(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The reconciler stands still, and the dispatcher's turn to stop never comes."""
    short = {**SHORT, "drain_timeout": timedelta(0)}
    h = await make_harness([Gated], resources={}, transports=[Scripted("wire", lambda _: None)], **short)

    with armed("reconciler.looked", hold=True) as looked:
        async with h.engine.worker() as worker:
            await looked.reached()
        services = worker._graph.services()
        running = [service._task for service in services if service._task is not None]
        left = [task for task in running if not (task.cancelling() or task.done())]
        for task in running:
            task.cancel()  # as asyncio.run does
        await asyncio.gather(*running, return_exceptions=True)

    assert left == []
    assert "cancelled the worker's tasks" not in caplog.text
