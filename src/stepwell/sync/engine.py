"""The methods of an engine for blocking code; from many threads, and in processes that fork."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from threading import RLock
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from weakref import WeakSet

from stepwell.config import Settings
from stepwell.engine import Engine
from stepwell.errors import InsideLoop
from stepwell.events import Callback, Events, Hooked
from stepwell.job import Job
from stepwell.machine import Compiled, Machine
from stepwell.outcomes import Result
from stepwell.sync.blocking import DEFAULT_CALL, Act, CallOptions, blocking, blocking_context
from stepwell.sync.handle import SyncHandle, returning_handle, returning_handles
from stepwell.sync.insights import SyncInsights
from stepwell.sync.interactions import SyncInteractions
from stepwell.sync.limits import SyncLimitOperations
from stepwell.sync.loop_thread import wait_for
from stepwell.sync.queues import SyncQueues
from stepwell.sync.twin import Twin

R = TypeVar("R")


class SyncEngine:
    """Every method of an engine, blocking: `engine.sync`. The first call opens it, `close()` or the exit closes it.

    It works through a twin of the engine in its own thread, one per process, so that it may be used beside
    `async with engine`. A call after `close()`, or in a forked child, opens a new one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._twin: Twin | None = None
        self._lock = RLock()  # guards the twin; re-entrant, for a signal handler may call what it interrupts
        _all.add(self)

    start = returning_handle(Engine.start)
    start_many = returning_handles(Engine.start_many)
    signal = blocking(Engine.signal)
    signal_many = blocking(Engine.signal_many)
    signal_or_start = returning_handle(Engine.signal_or_start)
    complete = blocking(Engine.complete)
    cancel = blocking(Engine.cancel)
    retry = blocking(Engine.retry)
    restart = blocking(Engine.restart)
    get = blocking(Engine.get)
    wait = blocking(Engine.wait)
    migrate = blocking(Engine.migrate, opened=False)
    check = blocking(Engine.check, opened=False)
    worker = blocking_context(Engine.worker)

    @property
    def settings(self) -> Settings:
        """The engine's settings."""
        return self._engine.settings

    @property
    def has_token_keys(self) -> bool:
        """Whether tokens can be signed and verified here."""
        return self._engine.has_token_keys

    @property
    def insights(self) -> SyncInsights:
        """Lists and figures for operators."""
        return SyncInsights(self._ask)

    @property
    def limits(self) -> SyncLimitOperations:
        """The limits at run time: list them, change them, reset them."""
        return SyncLimitOperations(self._ask)

    @property
    def interactions(self) -> SyncInteractions:
        """Interactions with external systems: the open ones, a single one, its token."""
        return SyncInteractions(self._ask)

    @property
    def queues(self) -> SyncQueues:
        """Pause and resume queues, and see what waits in them."""
        return SyncQueues(self._ask)

    @overload
    def on(self, events: Events, /) -> Callable[[Hooked], Hooked]: ...
    @overload
    def on(self, events: Events, callback: Callback, /) -> Callable[[], None]: ...
    def on(self, events: Events, callback: Callback | None = None, /) -> Any:
        """Call back on an event, as `engine.on` does: the engine and its blocking twin share their hooks."""
        return self._engine.on(events) if callback is None else self._engine.on(events, callback)

    def off(self, callback: Callback) -> None:
        """Remove a callback from every event it was hooked to."""
        self._engine.off(callback)

    @property
    def dropped_events(self) -> int:
        """The number of events that were dropped because callbacks were too slow."""
        return self._engine.dropped_events

    def handle(
        self, instance_id: int, machine: Job[..., Result] | type[Machine] | Compiled | str | None = None
    ) -> SyncHandle[Result]:
        """A handle of an instance that another process may have started; it is looked up when it is used.

        With the job, the result is read as what the job returns.
        """
        known = self._engine._registry  # noqa: SLF001 - the twin has the same one
        return SyncHandle(self._ask, instance_id, None, None if machine is None else known.resolve(machine))

    def close(self) -> None:
        """Close the connections and end the thread; calls under way in other threads raise EngineClosed."""
        _refuse_loop("close", "await asyncio.to_thread(engine.sync.close)")
        with self._lock:
            twin, self._twin = self._twin, None
        if twin is not None:
            atexit.unregister(self.close)
            twin.close()

    def __enter__(self) -> Self:
        _refuse_loop("__enter__", "async with engine")
        with self._lock:
            opening = self._running().open()
        wait_for(opening)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, act: Act[Engine, R], options: CallOptions = DEFAULT_CALL) -> R:
        """Run an act with the twin, and wait for it."""
        _refuse_loop(method, f"await engine.{method}(...)")
        with self._lock:  # so that no call is passed to a twin that is being closed
            result = self._running().submit(method, act, options)
        return wait_for(result) if options.relay is None else options.relay.wait_for(result)

    @contextmanager
    def _hold(self, method: str, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> Iterator[R]:
        """Keep the twin in a context of its engine while the block runs."""
        _refuse_loop(method, f"async with engine.{method}(...)")
        with self._lock:
            twin = self._running()
            entering = twin.enter(context)
        held, entered = wait_for(entering)
        try:
            yield entered
        finally:
            with self._lock:
                leaving = twin.leave(held) if self._twin is twin else None  # a closed twin has left it
            if leaving is not None:
                wait_for(leaving)

    def _running(self) -> Twin:
        if self._twin is None:
            self._twin = Twin(self._engine._twin, self._close_first_at_exit)  # noqa: SLF001 - made for this class
        return self._twin

    def _close_first_at_exit(self) -> None:
        """At exit, close before what was opened earlier, above all the embedded server."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _forget_parent(self) -> None:
        """In a forked child: leave the parent's thread and sockets alone, and open a new twin at the next call."""
        if self._twin is not None:
            _left_alone.append(self._twin)
        self._twin = None
        self._lock = RLock()  # another thread may have held the old one when the fork happened


_all: WeakSet[SyncEngine] = WeakSet()
_left_alone: list[Twin] = []  # kept forever: to collect them would close the parent's sockets and write to its loops


def _forget_parents() -> None:
    for engine in _all:
        engine._forget_parent()  # noqa: SLF001 - the two belong together


os.register_at_fork(after_in_child=_forget_parents)


def _refuse_loop(method: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideLoop(method, instead)
