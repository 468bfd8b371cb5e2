"""Waiting calls: one event each, set when a notification names its instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell._notify.notifier import Notifier
from stepwell._store.connection import notifications

FIRST_POLL = 0.025
LONGEST_POLL = 1.0
LISTENING_POLL = 5.0  # a notification may be lost; polling is the floor


class Waiters:
    """The events of waiting calls, by instance."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._events: dict[int, set[asyncio.Event]] = {}
        notifier.subscribe(notifications.SETTLED, self._hear)

    @contextmanager
    def waiting_for(self, instance_id: int) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(instance_id, set()).add(event)
        try:
            yield event
        finally:
            self._events[instance_id].discard(event)
            if not self._events[instance_id]:
                del self._events[instance_id]

    def pause(self, round_: int) -> float:
        """How many seconds to wait for a notification before polling again."""
        if self._notifier.is_listening:
            return LISTENING_POLL
        return float(min(FIRST_POLL * 2 ** min(round_, 10), LONGEST_POLL))

    def _hear(self, payload: str) -> None:
        """A notification names an instance; an empty one says that some may have been missed."""
        instance_id = notifications.read_number(payload)
        if instance_id is not None:
            heard = list(self._events.get(instance_id, ()))
        else:
            heard = [event for events in self._events.values() for event in events]
        for event in heard:
            event.set()
