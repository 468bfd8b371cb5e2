"""A pool of daemon threads. The interpreter does not wait for them at exit, unlike those of `ThreadPoolExecutor`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, thread
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_Call: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class DaemonThreads(Executor):
    """Starts a thread when a call arrives and none is idle, up to `most`; keeps the threads until shutdown."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._started = 0
        self._is_closed = False
        self._lock = Lock()

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool is shut down and accepts no more calls")
            self._calls.put((future, lambda: function(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._started < self._most:
                self._started += 1
                Thread(target=self._work, name=f"{self._name} {self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Accept no more calls and drop those that have not started. Never waits: running calls continue."""
        with self._lock:
            self._is_closed = True
            while True:
                try:
                    call = self._calls.get_nowait()
                except Empty:
                    break
                if call is not None:
                    call[0].cancel()
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._next()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    value = function()
                except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
                    future.set_exception(error)
                else:
                    future.set_result(value)
                    del value
            del call, future, function  # an idle thread keeps nothing alive
        self._calls.put(None)  # for the next thread

    def _next(self) -> _Call | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            self._idle.release()
            return self._calls.get()


@cache
def forget_pools_at_exit() -> None:
    """Let the interpreter exit without waiting for thread pools that code in daemon threads has created.

    The threads of these pools are daemons too, but the interpreter waits for all threads in a private table of
    `concurrent.futures`. If Python changes the table, or the private exit callback, a test fails.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the interpreter is exiting already
            register(_forget_pools)


def _forget_pools() -> None:
    waited_for = getattr(thread, "_threads_queues", {})
    for worker in list(waited_for):
        if worker.daemon:
            waited_for.pop(worker, None)
