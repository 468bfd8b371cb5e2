"""Bounds every call of an engine in time: the only place that applies `timeout=` and its default."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from stepwell.errors import CallTimeout, InvalidInput

R = TypeVar("R")

Timeout: TypeAlias = float | timedelta
BULK = 10  # a call with many entries has this many times the default


class Calls:
    """Applies timeouts to calls; has their default."""

    def __init__(self, default: timedelta) -> None:
        self.default = default.total_seconds()

    async def within(
        self, call: str, timeout: Timeout | None, work: Coroutine[Any, Any, R], *, connection: object = None,
        is_bulk: bool = False,
    ) -> R:  # fmt: skip
        """Do the work, or raise CallTimeout. Work in the caller's own transaction has no bound."""
        if timeout is not None:
            try:
                allowed = _given(timeout, connection)
            except InvalidInput:
                work.close()
                raise
        elif connection is not None:
            return await work
        else:
            allowed = self.default * (BULK if is_bulk else 1)
        with Deadline(call, allowed):
            return await work


def _given(timeout: Timeout, connection: object) -> float:
    if connection is not None:
        raise InvalidInput("timeout", "a call on your connection is part of your transaction; bound it there, for "
                           "example with statement_timeout")
    return to_seconds(timeout)


def to_seconds(timeout: object) -> float:
    """The seconds of a `timeout=`; InvalidInput if it is not a valid one."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidInput("timeout", f"{timeout!r} is neither a timedelta nor a number of seconds from 0 on")
    return seconds


class Deadline:
    """Cancels the task in the block after some seconds, and raises CallTimeout for it.

    Like `asyncio.timeout` with a fixed time, but at half the cost, which every start, signal and wait pays.
    """

    __slots__ = ("_call", "_cancels", "_is_expired", "_seconds", "_task", "_timer")

    def __init__(self, call: str, seconds: float) -> None:
        self._call = call
        self._seconds = seconds

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call of an engine must be awaited in a task")
        self._task = task
        self._cancels = task.cancelling()  # a caller may be cleaning up after a cancel
        self._is_expired = False
        self._timer = task.get_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        self._is_expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_expired:
            self._timer.cancel()
        elif self._task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise CallTimeout(self._call, self._seconds) from None
