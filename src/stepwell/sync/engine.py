"""The doors of an engine, for code that blocks; from many threads, and in processes that fork."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Awaitable, Callable, Iterator
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
from stepwell.sync.blocking import blocking, staying
from stepwell.sync.handle import SyncHandle, handing, handing_each
from stepwell.sync.insights import SyncInsights
from stepwell.sync.interactions import SyncInteractions
from stepwell.sync.limiting import SyncLimiting
from stepwell.sync.queues import SyncQueues
from stepwell.sync.relay import Relay
from stepwell.sync.thread import wait_for
from stepwell.sync.twin import Twin

R = TypeVar("R")


class SyncEngine:
    """Every door of an engine, blocking: `engine.sync`. The first call opens it, `close()` or the exit closes it.

    It works through a twin of the engine in a thread of its own, one per process, so that it may be used beside
    `async with engine`. A call after `close()`, or in a forked child, opens a new one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._twin: Twin | None = None
        self._lock = RLock()  # guards the twin; re-entrant, for a signal handler may call what it interrupts
        _all.add(self)

    start = handing(Engine.start)
    start_many = handing_each(Engine.start_many)
    signal = blocking(Engine.signal)
    signal_many = blocking(Engine.signal_many)
    signal_or_start = handing(Engine.signal_or_start)
    complete = blocking(Engine.complete)
    cancel = blocking(Engine.cancel)
    retry = blocking(Engine.retry)
    restart = blocking(Engine.restart)
    get = blocking(Engine.get)
    wait = blocking(Engine.wait)
    migrate = blocking(Engine.migrate, opened=False)
    check = blocking(Engine.check, opened=False)
    worker = staying(Engine.worker)

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
    def limits(self) -> SyncLimiting:
        """The limits at run time: look at them, change them, reset them."""
        return SyncLimiting(self._ask)

    @property
    def interactions(self) -> SyncInteractions:
        """Questions to the world: what is open, one of them, its token."""
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
        """Take a callback off every event it was hooked to."""
        self._engine.off(callback)

    @property
    def dropped_events(self) -> int:
        """Events that callbacks were too slow for."""
        return self._engine.dropped_events

    def handle(
        self, instance_id: int, machine: Job[..., Result] | type[Machine] | Compiled | str | None = None
    ) -> SyncHandle[Result]:
        """A handle of an instance that another process may have started; not looked up before it is used.

        With the job, the result is read as what the job returns.
        """
        known = self._engine._registry  # noqa: SLF001 - the twin's is the same one
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
        self._ask("__enter__", _nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self, door: str, act: Callable[[Engine], Awaitable[R]], *, opened: bool = True, relay: Relay | None = None
    ) -> R:
        """Have the twin act, and wait for it."""
        _refuse_loop(door, f"await engine.{door}(...)")
        with self._lock:  # so that nobody hands a call to a twin that is being closed
            answer = self._running().submit(act, opened=opened)
        return wait_for(answer) if relay is None else relay.wait_for(answer)

    @contextmanager
    def _stay(self, door: str, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> Iterator[R]:
        """Have the twin be in a context of its engine for the length of the block."""
        _refuse_loop(door, f"async with engine.{door}(...)")
        with self._lock:
            twin = self._running()
            entering = twin.enter(context)
        stay, entered = wait_for(entering)
        try:
            yield entered
        finally:
            with self._lock:
                leaving = twin.leave(stay) if self._twin is twin else None  # else: left when the twin was closed
            if leaving is not None:
                wait_for(leaving)

    def _running(self) -> Twin:
        if self._twin is None:
            self._twin = Twin(self._engine._twin, self._close_first_at_exit)  # noqa: SLF001 - the door made for this
        return self._twin

    def _close_first_at_exit(self) -> None:
        """At exit, close before anything that was opened up to now is: the embedded server, above all."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _forget_parent(self) -> None:
        """In a forked child: leave the parent's thread and sockets alone, and begin anew when called."""
        if self._twin is not None:
            _left_alone.append(self._twin)
        self._twin = None
        self._lock = RLock()  # another thread may have held the old one when the fork happened


_all: WeakSet[SyncEngine] = WeakSet()
_left_alone: list[Twin] = []  # for ever: to collect them would close sockets and write to loops that are the parent's


def _forget_parents() -> None:
    for engine in _all:
        engine._forget_parent()  # noqa: SLF001 - the other half of one thing


os.register_at_fork(after_in_child=_forget_parents)


def _refuse_loop(door: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InsideLoop(door, instead)


async def _nothing(_: Engine) -> None:
    """All there is to do is to open."""
