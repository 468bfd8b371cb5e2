"""A thread that runs an event loop, to which other threads pass coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from stepwell.errors import EngineClosed

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """A daemon thread with its own event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads())
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a call; it runs in the context of the calling thread."""
        return asyncio.run_coroutine_threadsafe(self._tracked(call), self._loop)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel the calls under way, run the last one, and end the thread. Nothing may be submitted after this."""
        try:
            wait_for(asyncio.run_coroutine_threadsafe(self._end(last), self._loop))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _tracked(self, call: Coroutine[Any, Any, R]) -> R:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - run_coroutine_threadsafe makes one
        self._calls.add(task)
        try:
            return await call
        finally:
            self._calls.discard(task)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await _cancel(self._calls)
            await last
        finally:
            await _cancel(asyncio.all_tasks() - {asyncio.current_task()})
            await self._loop.shutdown_asyncgens()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def wait_for(result: Future[R]) -> R:
    """The result of a call. An interruption of the wait, such as Ctrl-C, cancels the call."""
    try:
        return result.result()
    except CancelledError:
        raise EngineClosed("engine.sync was closed while this call was under way") from None
    except BaseException:
        result.cancel()
        raise


async def _cancel(tasks: set[asyncio.Task[Any]] | set[asyncio.Task[Any] | None]) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


class _Threads(ThreadPoolExecutor):
    """A thread per call. The usual pool refuses calls once the interpreter exits, which is when we close."""

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        result: Future[R] = Future()

        def run() -> None:
            try:
                result.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
                result.set_exception(error)

        Thread(target=run, name="stepwell sync call", daemon=True).start()
        return result
