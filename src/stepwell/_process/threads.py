"""One thread for all sync code of one run: its calls run there one after another, as in one sync step."""

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

LOOK_EVERY = 1.0  # seconds within which a waiting thread notices that its loop is closed


class RunThread:
    """A thread of a pool, kept from the first call of a run to its last, so that thread-local state, such as a
    connection or a context variable, survives between calls. `around` is entered before the first call and left after
    the last."""

    def __init__(self, pool: Executor | None = None, around: Around = nullcontext) -> None:
        self._loop = asyncio.get_running_loop()
        self._around = around
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._reason: BaseException | None = None  # why the run ends, if it fails
        self._is_ended = False  # the thread runs no more calls
        self._awaited: asyncio.Future[Any] | None = None
        self.is_given_up = False  # a caller was cancelled while its call ran; the call continues, and may read this
        self.left = self._loop.run_in_executor(pool, contextvars.copy_context().run, self._serve)
        self.left.add_done_callback(self._on_left)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in the thread; its exception is raised here."""
        self._awaited = future = self._loop.create_future()
        self._calls.put((future, function, args))
        try:
            value, error = await future
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        finally:
            self._awaited = None
        if error is not None:
            raise error
        return value

    async def finish(self, function: Callable[..., Any], *args: Any) -> None:
        """As `call`, for cleanup: after a call that was given up, it runs next, and nothing waits for it."""
        if self.is_given_up:
            self._calls.put((self._loop.create_future(), function, args))
        else:
            await self.call(function, *args)

    async def end(self, reason: BaseException | None = None) -> None:
        """Release the thread after its queued calls; if the run fails, `around` sees the reason."""
        self._reason = reason
        self._calls.put(None)
        if self.is_given_up:
            return
        error = await asyncio.shield(self.left)
        if error is not None and reason is None:
            raise error

    def _on_left(self, left: asyncio.Future[Any]) -> None:
        """The pool is closed and has no thread: the awaited call gets no result."""
        if not left.cancelled():
            left.exception()  # retrieved, so that asyncio does not log it
        if self._awaited is not None:
            self._awaited.cancel()

    def _serve(self) -> BaseException | None:
        """In the thread: run calls; returns the error that `around` raised."""
        try:
            with self._around():
                self._run_calls(None)
                self._raise_reason()
        except BaseException as error:  # noqa: BLE001 - passed to the loop, which handles it
            self._run_calls(error)
            return None if error is self._reason else error
        finally:
            self._reason = None  # it keeps the frames of its traceback alive
        return None

    def _raise_reason(self) -> None:
        if self._reason is not None:
            raise self._reason

    def _run_calls(self, entry_error: BaseException | None) -> None:
        """Run calls until the last one; if entering `around` failed, every call gets that error."""
        while not self._is_ended:
            call = self._next()
            if call is None:
                self._is_ended = True
                return
            future, function, args = call
            value, error = None, entry_error
            if entry_error is None:
                try:
                    value = function(*args)
                except BaseException as raised:  # noqa: BLE001 - as above
                    error = raised
            try:
                self._loop.call_soon_threadsafe(_set_result, future, (value, error))
            except RuntimeError:  # the loop is closed
                self._is_ended = True
            del call, future, function, args, value, error  # a waiting thread keeps no values alive

    def _next(self) -> _Call | None:
        while True:
            try:
                return self._calls.get(timeout=LOOK_EVERY)
            except Empty:
                if self._loop.is_closed():
                    return None


def _set_result(future: asyncio.Future[Any], outcome: tuple[Any, BaseException | None]) -> None:
    if not future.done():
        future.set_result(outcome)
