"""Queues in the operator's hand: pause, resume, and what waits in each."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from difflib import get_close_matches

from stepwell._core.ranges import check_queue, check_text
from stepwell._runtime.notifier import Notifier
from stepwell._store import queues
from stepwell._store.database import Database
from stepwell._store.queues import MOST_COUNTED, Queue
from stepwell.errors import InvalidInput

__all__ = ["MOST_COUNTED", "Queue", "Queues"]


class Queues:
    """What can be done to whole queues: `engine.queues`."""

    def __init__(self, database: Database, notifier: Notifier, own: Iterable[str]) -> None:
        self._database = database
        self._notifier = notifier
        self._own = own  # queues of the engine's own machines and workers

    async def pause(self, queue: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Claim nothing more from a queue: when this returns, no worker does. What runs goes on to its commit.

        Returns whether it was running; if it was paused already, `reason` and `by` are noted anew. A queue that no
        worker serves, no machine is on and no instance waits in is refused: it is most likely misspelt.
        """
        name = check_queue(queue)
        why, who = _words("reason", reason), _words("by", by)
        known = sorted({*self._own, *(found.name for found in await self.list())})
        if name not in known:
            raise InvalidInput("queue", f"nobody knows a queue {name!r}{_hint(name, known)}")
        was_running = await queues.pause(self._database, name, why, who)
        self._notifier.announce_queues()
        return was_running

    async def resume(self, queue: str) -> bool:
        """Claim from a paused queue again, at once; returns whether it was paused."""
        was_paused = await queues.resume(self._database, check_queue(queue))
        self._notifier.announce_queues()
        return was_paused

    async def list(self) -> builtins.list[Queue]:
        """Every queue that a worker serves, a machine is on, or an instance waits in, by name, with what waits."""
        return await queues.list_all(self._database)


def _words(field: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected words, got {text!r}")
    return check_text(field, text)


def _hint(name: str, known: list[str]) -> str:
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f" (known: {', '.join(map(repr, known))})" if known else ""
