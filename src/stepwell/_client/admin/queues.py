"""Operators' calls for queues: pause, resume, and list them with what waits in each."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from difflib import get_close_matches

from stepwell._client.call_timeout import Calls, Timeout
from stepwell._core.validation import check_queue, check_text
from stepwell._notify.notifier import Notifier
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import queues
from stepwell._store.registrations.queues import MOST_COUNTED, Queue
from stepwell.errors import InvalidInput

__all__ = ["MOST_COUNTED", "Queue", "Queues"]


class Queues:
    """`engine.queues`: pauses, resumes and lists queues."""

    def __init__(self, database: Database, notifier: Notifier, own: Iterable[str], calls: Calls) -> None:
        self._database = database
        self._calls = calls
        self._notifier = notifier
        self._own = own  # queues of the engine's own machines and workers

    async def pause(
        self, queue: str, *, reason: str | None = None, by: str | None = None, timeout: Timeout | None = None
    ) -> bool:
        """Stop claims from a queue: when this returns, no worker claims from it. Running steps continue and commit.

        Returns whether the queue was running; if it was paused already, `reason` and `by` are replaced. A queue is
        refused as misspelt if no worker serves it, no machine uses it and no instance waits in it.
        """
        return await self._calls.within("queues.pause", timeout, self._pause(queue, reason, by))

    async def _pause(self, queue: str, reason: str | None, by: str | None) -> bool:
        name = check_queue(queue)
        reason_text, operator = _checked_text("reason", reason), _checked_text("by", by)
        known = sorted({*self._own, *(found.name for found in await queues.list_all(self._database))})
        if name not in known:
            raise InvalidInput("queue", f"no queue is called {name!r}{_hint(name, known)}")
        was_running = await queues.pause(self._database, name, reason_text, operator)
        self._notifier.publish(notifications.QUEUES)
        return was_running

    async def resume(self, queue: str, *, timeout: Timeout | None = None) -> bool:
        """Claim from a paused queue again, at once; returns whether it was paused."""
        resuming = queues.resume(self._database, check_queue(queue))
        was_paused = await self._calls.within("queues.resume", timeout, resuming)
        self._notifier.publish(notifications.QUEUES)
        return was_paused

    async def list(self, *, timeout: Timeout | None = None) -> builtins.list[Queue]:
        """Every queue that a worker serves, a machine uses or an instance waits in, by name, with what waits."""
        return await self._calls.within("queues.list", timeout, queues.list_all(self._database))


def _checked_text(field: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected a string, got {text!r}")
    return check_text(field, text)


def _hint(name: str, known: list[str]) -> str:
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f" (known: {', '.join(map(repr, known))})" if known else ""
