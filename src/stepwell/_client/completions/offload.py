"""Runs work on large texts in a thread, so that the loop serves other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import ParamSpec, TypeVar

from stepwell._core.serialization.bounds import uncollected
from stepwell._process.daemon_threads import DaemonThreads
from stepwell.errors import EngineClosed

LARGE = 16 * 1024  # characters; smaller texts take some milliseconds at worst
P = ParamSpec("P")
R = TypeVar("R")


class LargeTextThread:
    """One thread for all such work: more threads would only compete with the loop for the interpreter lock."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(1, "stepwell reply")
        self._closed = Event()

    def close(self) -> None:
        """Accept no more work, and drop work that has not started."""
        self._closed.set()
        self._threads.shutdown()

    async def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: here, or in the thread if `size` is LARGE or more."""
        if size < LARGE:
            return function(*args, **kwargs)
        if self._closed.is_set():
            raise EngineClosed
        future = self._threads.submit(_uncollected, partial(function, *args, **kwargs))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed.is_set() and future.cancelled():  # `close` dropped it
                raise EngineClosed from None
            raise


def _uncollected(function: Callable[[], R]) -> R:
    """Run without garbage collection, which holds the interpreter lock: the many new objects are freed soon anyway."""
    with uncollected():
        return function()
