"""One thread for all sync code of one run, as if it were one sync step: its calls run there one after another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
_Call: TypeAlias = "tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]"

LOOK_EVERY = 1.0  # seconds in which a thread that waits for calls notices that its loop is gone


class RunThread:
    """A thread of a pool, kept from the first call of a run to its last: what code keeps per thread, as a connection or
    a context variable, is there in the next call too. `around` is entered before the first and left after the last."""

    def __init__(self, pool: Executor | None = None, around: Around = nullcontext) -> None:
        self._loop = asyncio.get_running_loop()
        self._around = around
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._reason: BaseException | None = None  # why the run ends, if it fails
        self._is_ended = False  # of the thread: no call comes any more
        self._awaited: asyncio.Future[Any] | None = None
        self.is_given_up = False  # somebody left while his call ran; it runs on, and may look at this
        self.left = self._loop.run_in_executor(pool, contextvars.copy_context().run, self._serve)
        self.left.add_done_callback(self._forsake)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it there; what it raises is raised here."""
        self._awaited = answer = self._loop.create_future()
        self._calls.put((answer, function, args))
        try:
            value, error = await answer
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        finally:
            self._awaited = None
        if error is not None:
            raise error
        return value

    async def finish(self, function: Callable[..., Any], *args: Any) -> None:
        """As `call`, for what clears up: if a call was given up it comes after that, and nobody waits for it."""
        if self.is_given_up:
            self._calls.put((self._loop.create_future(), function, args))
        else:
            await self.call(function, *args)

    async def end(self, reason: BaseException | None = None) -> None:
        """Let the thread go, when it has done what it was told; what surrounds it is told why, if the run fails."""
        self._reason = reason
        self._calls.put(None)
        if self.is_given_up:
            return
        error = await asyncio.shield(self.left)
        if error is not None and reason is None:
            raise error

    def _forsake(self, left: asyncio.Future[Any]) -> None:
        """The pool is closed and has no thread any more: nobody answers."""
        if not left.cancelled():
            left.exception()  # nobody may be there to look at it
        if self._awaited is not None:
            self._awaited.cancel()

    def _serve(self) -> BaseException | None:
        """In the thread: answer calls; returns what went wrong around them."""
        try:
            with self._around():
                self._answer(None)
                self._tell_reason()
        except BaseException as error:  # noqa: BLE001 - carried to the loop, where it is handled
            self._answer(error)
            return None if error is self._reason else error
        finally:
            self._reason = None  # it holds the frames that it came through
        return None

    def _tell_reason(self) -> None:
        if self._reason is not None:
            raise self._reason

    def _answer(self, trouble: BaseException | None) -> None:
        """Answer calls until the last; with trouble, if there could be no first one."""
        while not self._is_ended:
            call = self._next()
            if call is None:
                self._is_ended = True
                return
            answer, function, args = call
            value, error = None, trouble
            if trouble is None:
                try:
                    value = function(*args)
                except BaseException as raised:  # noqa: BLE001 - as above
                    error = raised
            try:
                self._loop.call_soon_threadsafe(_give, answer, (value, error))
            except RuntimeError:  # the loop is closed
                self._is_ended = True
            del call, answer, function, args, value, error  # while it waits, it holds nobody's items

    def _next(self) -> _Call | None:
        while True:
            try:
                return self._calls.get(timeout=LOOK_EVERY)
            except Empty:
                if self._loop.is_closed():
                    return None


def _give(answer: asyncio.Future[Any], outcome: tuple[Any, BaseException | None]) -> None:
    if not answer.done():
        answer.set_result(outcome)
