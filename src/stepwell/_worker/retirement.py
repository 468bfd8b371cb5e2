"""Retires a worker with code that may no longer run: drains it, and logs the reason repeatedly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from stepwell._worker.shutdown import is_wish_to_end
from stepwell.errors import StepwellError

log = logging.getLogger("stepwell")

LOG_EVERY = 60.0  # seconds


class Retirement:
    """Drains the worker once, at the first call; the worker's block waits for the drain before it ends."""

    def __init__(self, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_orderly = True  # an unfinished step counts as an attempt, not as a crash
        self._ended: asyncio.Event | None = None  # set when the drain that `end` waits for is done
        self._logging: asyncio.Task[None] | None = None
        self._reason: asyncio.Future[StepwellError] = asyncio.get_running_loop().create_future()

    def begin(self, problem: StepwellError) -> None:
        """Drain, and log the reason; does nothing if the worker is draining or has drained."""
        if self._draining is None and not self._is_over:
            self._draining = asyncio.create_task(self._drain(), name="stepwell retirement")
            self._logging = asyncio.create_task(_log_repeatedly(problem), name="stepwell retired")
            self._reason.set_result(problem)

    def break_off(self, error: BaseException) -> None:
        """An exception ends the worker's block: unless the worker was stopped before, an unfinished step counts as a
        crash. Such a step may have cancelled the program's task, and would otherwise end one worker after another."""
        if not (self._is_over or self._draining is not None or is_wish_to_end(error)):
            self.is_orderly = False

    async def reason(self) -> StepwellError:
        """Wait until the retirement begins; returns the reason."""
        return await asyncio.shield(self._reason)

    async def end(self) -> None:
        """Drain, unless a drain has started already; wait for it, and stop logging."""
        if self._ended is not None:
            await self._ended.wait()
            return
        self._is_over = True
        self._ended = asyncio.Event()
        if self._logging is not None:
            self._logging.cancel()
        try:
            await (self._drain() if self._draining is None else self._draining)
        finally:
            self._ended.set()


async def _log_repeatedly(problem: StepwellError) -> None:
    while True:
        log.error("worker: draining within drain_timeout, and claiming nothing more: %s", problem)
        await asyncio.sleep(LOG_EVERY)
