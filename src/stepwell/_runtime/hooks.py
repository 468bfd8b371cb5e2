"""Calls what was hooked, in a thread of its own, so that no callback can change or delay what the engine does."""

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

MOST_QUEUED = 10_000  # events that wait for their callbacks; what comes beyond is dropped
CLOSING_PATIENCE = 1.0  # seconds that a closing engine gives to what is queued


class Hooks:
    """The callbacks of one engine, by event."""

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()
        """The events somebody hooked. Look here before an event is made: nobody listens, nobody pays."""
        self.dropped = 0
        self._callbacks: dict[str, tuple[Callback, ...]] = {}
        self._delivery: _Delivery | None = None
        self._guard = threading.Lock()  # an engine and its `sync` twin share their hooks
        _all.add(self)

    def adder(self, events: object) -> Callable[[Hooked], Hooked]:
        """A decorator that hooks to these events what it decorates, and leaves it as it is."""
        check_events(events)

        def hook(hooked: Hooked) -> Hooked:
            self.add(events, hooked)
            return hooked

        return hook

    def add(self, events: object, callback: Callback) -> Callable[[], None]:
        """Hook a callback to events; returns what takes it off again."""
        names = check_events(events)
        if not callable(callback):
            raise InvalidInput("callback", f"expected a function of one event, got {callback!r}")
        for name in names:
            self._set(name, [*self._without(name, callback), callback])
        return partial(self.remove, callback, names)

    def remove(self, callback: Callback, names: Sequence[EventName] = NAMES) -> None:
        """Take a callback off; what is queued does not reach it any more."""
        for name in names:
            self._set(name, self._without(name, callback))

    def _without(self, name: str, callback: Callback) -> list[Callback]:
        return [one for one in self._callbacks.get(name, ()) if one != callback]

    def _set(self, name: str, callbacks: list[Callback]) -> None:
        self._callbacks[name] = tuple(callbacks)  # replaced whole: the thread reads it at any time
        self.wanted = frozenset(name for name, ones in self._callbacks.items() if ones)

    def put(self, facts: Sequence[Fact], make: Callable[[Fact], Event]) -> None:
        """Queue an event for each fact. Never waits; what is too much is not even made."""
        if not facts:
            return
        dropped = len(facts)
        try:
            delivery = self._delivering()
            dropped = delivery.put([make(fact) for fact in facts[: delivery.room]], len(facts))
        except RuntimeError as error:  # no thread is to be had; the engine goes on
            log.warning("hooks: %s; %d events were not told", error, dropped)
        if dropped:
            with self._guard:
                self.dropped += dropped

    def _delivering(self) -> _Delivery:
        """The thread, begun with the first event, not with the first hook: an engine may be forked in between."""
        with self._guard:
            if self._delivery is None:
                self._delivery = _Delivery(lambda name: self._callbacks.get(name, ()))
            return self._delivery

    async def close(self) -> None:
        """Let callbacks have what is queued, for a moment; then leave them to themselves."""
        with self._guard:
            delivery, self._delivery = self._delivery, None
        if delivery is not None:
            await asyncio.to_thread(delivery.close, CLOSING_PATIENCE)


    def forget_parent(self) -> None:
        """In a forked child: the thread is the parent's, and whoever held a lock is not here to give it back."""
        self._delivery = None
        self._guard = threading.Lock()


_all: WeakSet[Hooks] = WeakSet()


def _forget_parents() -> None:
    for hooks in list(_all):
        hooks.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)


class _Delivery:
    """The events in line, and the thread that brings them to the callbacks."""

    def __init__(self, callbacks_of: Callable[[str], tuple[Callback, ...]]) -> None:
        self._callbacks_of = callbacks_of
        self._line: deque[Event] = deque()
        self._changed = threading.Condition()  # never held while a callback runs
        self._is_closing = False
        self._is_dropping = False
        self._thread = threading.Thread(target=self._run, name="stepwell hooks", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        return max(0, MOST_QUEUED - len(self._line))

    def put(self, events: Sequence[Event], wished: int) -> int:
        """Queue what there is room for; returns how many of those wished for were dropped."""
        with self._changed:
            taken = events[: self.room]
            self._line.extend(taken)
            dropped = wished - len(taken)
            has_begun = dropped > 0 and not self._is_dropping
            self._is_dropping = self._is_dropping or dropped > 0
            self._changed.notify()
        if has_begun:
            log.warning("hooks: callbacks are too slow, %d events wait; dropping what comes until they are through",
                        MOST_QUEUED)
        return dropped

    def close(self, patience: float) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(patience)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._line)
                self._line.clear()
            log.warning("hooks: a callback did not return within %g s; %d events were not told", patience, left)

    def _next(self) -> Event | None:
        with self._changed:
            while not self._line:
                self._is_dropping = False
                if self._is_closing:
                    return None
                self._changed.wait()
            return self._line.popleft()

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
        answer = callback(event)
        if inspect.isawaitable(answer):
            runner.run(_awaited(answer))
    except BaseException:  # the author's code: whatever it raises, even SystemExit, the next one is called
        named = getattr(callback, "__qualname__", repr(callback))
        log.exception("hooks: callback %s raised on %r of #%d", named, event.name, event.id)


async def _awaited(answer: Awaitable[Any]) -> None:
    await answer


def check_events(events: object) -> tuple[EventName, ...]:
    """The events meant by one name, several, or "all"."""
    if events == "all":
        return NAMES
    given = [events] if isinstance(events, str) else list(events) if isinstance(events, list | tuple) else None
    if not given:
        raise InvalidInput("event", f"expected the name of an event, several, or \"all\", got {events!r}")
    for name in given:
        if name not in NAMES:
            near = _near_miss(name, NAMES) if isinstance(name, str) else ""
            raise InvalidInput("event", f"{name!r} is no event{near or ' (there are: ' + ', '.join(NAMES) + ')'}")
    return tuple(name for name in NAMES if name in given)
