"""Calls hooked callbacks in a separate thread, so that no callback can change or delay the engine."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from stepwell.errors import InvalidInput, _near_miss
from stepwell.events import NAMES, Callback, Event, EventName, Hooked

Fact = TypeVar("Fact")

log = logging.getLogger("stepwell")

MOST_QUEUED = 10_000  # events that wait for their callbacks; further ones are dropped


class Hooks:
    """The callbacks of one engine, by event."""

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()
        """The hooked events. Check it before making an event: an event without callbacks costs nothing."""
        self.dropped = 0
        self._callbacks: dict[str, tuple[Callback, ...]] = {}
        self._delivery: _Delivery | None = None
        self._guard = threading.Lock()  # an engine and its `sync` twin share their hooks
        _all.add(self)

    def adder(self, events: object) -> Callable[[Hooked], Hooked]:
        """A decorator that hooks the decorated function to these events and returns it unchanged."""
        check_events(events)

        def hook(hooked: Hooked) -> Hooked:
            self.add(events, hooked)
            return hooked

        return hook

    def add(self, events: object, callback: Callback) -> Callable[[], None]:
        """Hook a callback to events; returns a function that removes it."""
        names = check_events(events)
        if not callable(callback):
            raise InvalidInput("callback", f"expected a function of one event, got {callback!r}")
        for name in names:
            self._set(name, [*self._without(name, callback), callback])
        return partial(self.remove, callback, names)

    def remove(self, callback: Callback, names: Sequence[EventName] = NAMES) -> None:
        """Remove a callback; queued events do not reach it."""
        for name in names:
            self._set(name, self._without(name, callback))

    def _without(self, name: str, callback: Callback) -> list[Callback]:
        return [one for one in self._callbacks.get(name, ()) if one != callback]

    def _set(self, name: str, callbacks: list[Callback]) -> None:
        self._callbacks[name] = tuple(callbacks)  # replaced whole: the thread reads it at any time
        self.wanted = frozenset(name for name, ones in self._callbacks.items() if ones)

    def put(self, facts: Sequence[Fact], make: Callable[[Fact], Event]) -> None:
        """Queue an event for each fact. Never waits; events beyond the room in the queue are not made."""
        if not facts:
            return
        dropped = len(facts)
        try:
            delivery = self._delivering()
            dropped = delivery.put([make(fact) for fact in facts[: delivery.room]], len(facts))
        except RuntimeError as error:  # no thread could be started; the engine continues
            log.warning("hooks: %s; dropped %d events", error, dropped)
        if dropped:
            with self._guard:
                self.dropped += dropped

    def _delivering(self) -> _Delivery:
        """The thread, started with the first event, not with the first hook: an engine may be forked in between."""
        with self._guard:
            if self._delivery is None:
                self._delivery = _Delivery(lambda name: self._callbacks.get(name, ()))
            return self._delivery

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for callbacks of queued events; then drop the remaining events."""
        with self._guard:
            delivery, self._delivery = self._delivery, None
        if delivery is not None:
            await asyncio.to_thread(delivery.close, timeout)

    def forget_parent(self) -> None:
        """In a forked child: drop the parent's thread, and a lock that another thread may have held at the fork."""
        self._delivery = None
        self._guard = threading.Lock()


_all: WeakSet[Hooks] = WeakSet()


def _forget_parents() -> None:
    for hooks in list(_all):
        hooks.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)


class _Delivery:
    """The queued events, and the thread that calls the callbacks with them."""

    def __init__(self, callbacks_of: Callable[[str], tuple[Callback, ...]]) -> None:
        self._callbacks_of = callbacks_of
        self._queue: deque[Event] = deque()
        self._changed = threading.Condition()  # never held while a callback runs
        self._is_closing = False
        self._is_dropping = False
        self._thread = threading.Thread(target=self._run, name="stepwell hooks", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        return max(0, MOST_QUEUED - len(self._queue))

    def put(self, events: Sequence[Event], requested: int) -> int:
        """Queue events as far as there is room; returns how many of the `requested` number were dropped."""
        with self._changed:
            taken = events[: self.room]
            self._queue.extend(taken)
            dropped = requested - len(taken)
            has_begun = dropped > 0 and not self._is_dropping
            self._is_dropping = self._is_dropping or dropped > 0
            self._changed.notify()
        if has_begun:
            log.warning("hooks: callbacks are too slow, %d events wait; dropping new events until the queue is empty",
                        MOST_QUEUED)
        return dropped

    def close(self, timeout: float) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._queue)
                self._queue.clear()
            log.warning("hooks: a callback did not return within %.1f s; dropped %d events", timeout, left)

    def _next(self) -> Event | None:
        with self._changed:
            while not self._queue:
                self._is_dropping = False
                if self._is_closing:
                    return None
                self._changed.wait()
            return self._queue.popleft()

    def _run(self) -> None:
        runner = asyncio.Runner()  # makes its loop with the first coroutine
        try:
            while (event := self._next()) is not None:
                for callback in self._callbacks_of(event.name):
                    _call(runner, callback, event)
        finally:
            runner.close()


def _call(runner: asyncio.Runner, callback: Callback, event: Event) -> None:
    try:
        returned = callback(event)
        if inspect.isawaitable(returned):
            runner.run(_awaited(returned))
    except BaseException:  # author code may raise anything, even SystemExit; the next callback is still called
        named = getattr(callback, "__qualname__", repr(callback))
        log.exception("hooks: callback %s raised on %r of #%d", named, event.name, event.id)


async def _awaited(returned: Awaitable[Any]) -> None:
    await returned


def check_events(events: object) -> tuple[EventName, ...]:
    """The events named by one name, several, or "all"."""
    if events == "all":
        return NAMES
    given = [events] if isinstance(events, str) else list(events) if isinstance(events, list | tuple) else None
    if not given:
        raise InvalidInput("event", f"expected the name of an event, several, or \"all\", got {events!r}")
    for name in given:
        if name not in NAMES:
            near = _near_miss(name, NAMES) if isinstance(name, str) else ""
            raise InvalidInput("event", f"{name!r} is not an event{near or ' (events: ' + ', '.join(NAMES) + ')'}")
    return tuple(name for name in NAMES if name in given)
