"""Clients that wait for an instance: one event per waiter, set when a notice names its instance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell._runtime.notifier import Notifier
from stepwell._store import notices

FIRST_POLL = 0.025
LONGEST_POLL = 1.0
LISTENING_POLL = 5.0  # a notice may be lost; a look now and then is the floor


class Waiters:
    """Who waits for which instance."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._events: dict[int, set[asyncio.Event]] = {}
        notifier.subscribe(notices.SETTLED, self._hear)

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

    def patience(self, round_: int) -> float:
        """How long to wait for a notice before looking again."""
        if self._notifier.is_listening:
            return LISTENING_POLL
        return float(min(FIRST_POLL * 2 ** min(round_, 10), LONGEST_POLL))

    def _hear(self, payload: str) -> None:
        """A notice names an instance; an empty one says that some may have been missed."""
        instance_id = notices.read_number(payload)
        if instance_id is not None:
            heard = list(self._events.get(instance_id, ()))
        else:
            heard = [event for events in self._events.values() for event in events]
        for event in heard:
            event.set()
