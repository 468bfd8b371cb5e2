"""Calls the author's code: async in the loop, sync in a thread, both with the timeout of the step."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from stepwell._core.instance import Claim
from stepwell._process.daemon_threads import DaemonThreads
from stepwell._process.threads import Around, RunThread
from stepwell.errors import StepTimeout
from stepwell.machine import Step

MOST_THREADS = 1_000


class Invoker:
    """Runs a step, or its `handle`, with its timeout; an exception reaches the caller."""

    def __init__(self, slots: int, around_sync_steps: Around | None = None) -> None:
        self._around = nullcontext if around_sync_steps is None else around_sync_steps
        self._threads = DaemonThreads(min(slots, MOST_THREADS) or 1, "stepwell step")
        self.in_threads = 0  # sync calls that run now

    def close(self) -> None:
        """Accept no more sync calls; running ones continue."""
        self._threads.shutdown()

    def keep_thread(self) -> RunThread:
        """A thread for several calls of sync code; it counts as one call."""
        thread = RunThread(self._threads, self._around)
        self.in_threads += 1
        thread.left.add_done_callback(self._thread_ended)
        return thread

    async def call(self, claim: Claim, step: Step, function: Callable[..., Any], is_async: bool, *args: Any) -> object:
        timeout = step.timeout
        if not is_async:
            return await self._call_in_thread(claim, step, function, *args)
        if timeout is None:
            return await function(*args)
        try:
            async with asyncio.timeout(timeout.total_seconds()) as scope:
                return await function(*args)
        except TimeoutError:
            if scope.expired():
                raise StepTimeout(claim.machine, step.name, timeout) from None
            raise

    async def _call_in_thread(self, claim: Claim, step: Step, function: Callable[..., Any], *args: Any) -> object:
        """Run sync code in a thread. The step keeps claim and slot until the thread returns, even past its timeout."""
        started = time.monotonic()
        context = contextvars.copy_context()
        self.in_threads += 1
        future = asyncio.get_running_loop().run_in_executor(
            self._threads, context.run, _caught, self._around, function, args
        )
        future.add_done_callback(self._thread_ended)
        value, error = await asyncio.shield(future)
        timeout = step.timeout
        if timeout is not None and time.monotonic() - started > timeout.total_seconds():
            raise StepTimeout(claim.machine, step.name, timeout) from error
        if error is not None:
            raise error
        if inspect.iscoroutine(value):
            value.close()
        return value

    def _thread_ended(self, _: object) -> None:
        self.in_threads -= 1


def _caught(
    around: Around, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[object, BaseException | None]:
    """Call the function in the thread and catch its error: a future cannot carry a StopIteration."""
    value = None  # returned if `around` suppresses the error
    try:
        with around():
            value = function(*args)
    except BaseException as error:  # noqa: BLE001 - returned to the loop, which handles it
        return None, error
    return value, None
