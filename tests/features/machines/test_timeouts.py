"""Rule 9: a step may have a timeout."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Status, StepTimeout, job, step
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

SHORT = timedelta(milliseconds=30)


async def test_rule_9_an_async_step_past_its_timeout_is_cancelled_and_handled(make_harness: MakeHarness) -> None:
    """Rule 9: an async step that outlives its timeout is cancelled and handle gets StepTimeout."""
    cancelled = asyncio.Event()

    class Slow(Machine):
        @step(timeout=SHORT)
        async def start(self, ctx: Context[Any]) -> Done:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return Done("never")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
            assert isinstance(error, StepTimeout)
            return Done([error.machine, error.step, error.timeout.total_seconds(), str(error)])

    h = await make_harness([Slow])
    slow = await h.engine.start(Slow)
    async with h.engine.worker():
        result = await slow.result(timeout=30)

    assert cancelled.is_set()
    assert result == ["Slow", "start", 0.03, "step 'start' of Slow ran longer than its timeout of 0.03 s"]


async def test_rule_9_a_timeout_error_of_the_author_is_not_a_step_timeout(make_harness: MakeHarness) -> None:
    """Rule 9: only a step that outlives its own timeout gets StepTimeout."""

    class Busy(Machine):
        @step(timeout=timedelta(minutes=5))
        async def start(self, ctx: Context[Any]) -> Done:
            raise TimeoutError("a socket's")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
            return Done([type(error).__name__, str(error)])

    h = await make_harness([Busy])
    busy = await h.engine.start(Busy)
    async with h.engine.worker():
        assert await busy.result(timeout=30) == ["TimeoutError", "a socket's"]


async def test_rule_9_a_sync_step_keeps_claim_and_slot_until_its_thread_returns(make_harness: MakeHarness) -> None:
    """Rule 9: a sync step keeps its claim, slot and key until its thread returns; then StepTimeout."""
    began, go_on = threading.Event(), threading.Event()

    class Slow(Machine):
        @step(timeout=SHORT)
        def start(self, ctx: Context[Any]) -> Done:
            began.set()
            go_on.wait(60)
            return Done("too late")

        @step
        async def quick(self, ctx: Context[Any]) -> Done:
            return Done("quick")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
            return Done(type(error).__name__)

    h = await make_harness([Slow])
    slow = await h.engine.start(Slow, concurrency_key="k")
    async with h.engine.worker({"default": 1}) as worker:
        await eventually(began.is_set)
        quick = await h.engine.start(Slow, step="quick")
        waited = await quick.wait(timeout=SHORT * 5)
        kept = await slow.get()
        threads, own = worker.stuck_threads, worker.id
        go_on.set()
        results = [await slow.result(timeout=30), await quick.result(timeout=30)]

    assert (waited.status, kept.status, kept.worker_id, threads) == (Status.RUNNABLE, Status.EXECUTING, own, 1)
    assert results == ["StepTimeout", "quick"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_rule_9_a_step_within_its_timeout_is_left_alone(make_harness: MakeHarness, is_async: bool) -> None:
    """Rule 9: a step that ends in time has its outcome."""

    class Quick(Machine):
        if is_async:

            @step(timeout=timedelta(minutes=5))
            async def start(self, ctx: Context[Any]) -> Done:
                return Done("in time")
        else:

            @step(timeout=timedelta(minutes=5))
            def start(self, ctx: Context[Any]) -> Done:
                return Done("in time")

    h = await make_harness([Quick])
    quick = await h.engine.start(Quick)
    async with h.engine.worker():
        assert await quick.result(timeout=30) == "in time"


async def test_rule_9_a_job_past_its_timeout_is_retried(make_harness: MakeHarness) -> None:
    """Rule 9: for a job a timeout is an error like any other."""

    @job(timeout=timedelta(seconds=1), backoff=lambda _: timedelta(0))  # its second attempt is to end in time
    async def patient(ctx: Context[Any]) -> int:
        if ctx.attempt == 0:
            await asyncio.Event().wait()
        return ctx.attempt

    h = await make_harness([patient])
    handle = await h.engine.start(patient)
    async with h.engine.worker():
        assert await handle.result(timeout=30) == 1
