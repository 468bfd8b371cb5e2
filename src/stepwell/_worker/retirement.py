"""Ends a worker with code that may no longer run on what is stored: it drains, and keeps logging why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from stepwell._worker.shutdown import is_wish_to_end
from stepwell.errors import StepwellError

log = logging.getLogger("stepwell")

SAID_EVERY = 60.0  # seconds


class Retirement:
    """Drains the worker once, at the first call; the end of the worker's block waits for that."""

    def __init__(self, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_orderly = True  # a step that does not end in time counts as an attempt, not as a crash
        self._ended: asyncio.Event | None = None  # set when the end has been called for
        self._saying: asyncio.Task[None] | None = None
        self._reason: asyncio.Future[StepwellError] = asyncio.get_running_loop().create_future()

    def begin(self, problem: StepwellError) -> None:
        """Drain, and log why; does nothing if the worker drains or has drained."""
        if self._draining is None and not self._is_over:
            self._draining = asyncio.create_task(self._drain(), name="stepwell retirement")
            self._saying = asyncio.create_task(_say(problem), name="stepwell retired")
            self._reason.set_result(problem)

    def break_off(self, error: BaseException) -> None:
        """The worker's block ends by an exception: unless the worker was stopped before, a step that does not end in
        time counts as a crash. A step may have cancelled the program's task, and would end one worker after another."""
        if not (self._is_over or self._draining is not None or is_wish_to_end(error)):
            self.is_orderly = False

    async def reason(self) -> StepwellError:
        """Wait until it has begun; returns why."""
        return await asyncio.shield(self._reason)

    async def end(self) -> None:
        """Drain, unless that has started already; wait for it, and stop logging."""
        if self._ended is not None:
            await self._ended.wait()
            return
        self._is_over = True
        self._ended = asyncio.Event()
        if self._saying is not None:
            self._saying.cancel()
        try:
            await (self._drain() if self._draining is None else self._draining)
        finally:
            self._ended.set()


async def _say(problem: StepwellError) -> None:
    while True:
        log.error("worker: it claims nothing more, and ends what runs within drain_timeout: %s", problem)
        await asyncio.sleep(SAID_EVERY)
