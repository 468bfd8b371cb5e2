"""Calls of `sql/queues`: declaring, pausing, resuming and listing queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stepwell._store.database import Database, Queryable

MOST_COUNTED = 10_000  # of what is runnable, per queue; of what is held, per reason


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as operators see it."""

    name: str
    fair_by: str | None  # by what it is shared out; None: it is not
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None  # of the pause
    runnable: int  # may run now: waits for a slot, or for the end of the pause; counted up to 10,000
    executing: int
    held: int | None  # may not run yet: its time, a key, a limit, other code; None where there are too many to count

    @property
    def is_paused(self) -> bool:
        """Whether nothing is claimed from it."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True)
class Declared:
    """What a declaration has changed; `is_changed` if somebody had said otherwise."""

    queue: str
    fair_by: str | None
    is_changed: bool


async def declare(db: Queryable, fair_by: Mapping[str, str | None]) -> list[Declared]:
    """Write by what each queue is shared out; returns what is new."""
    return [Declared(*row) for row in await db.fetch("queues/declare", [*fair_by], [*fair_by.values()])]


async def pause(db: Queryable, queue: str, reason: str | None, by: str | None) -> bool:
    """Pause, once claims under way have ended; returns whether it was running."""
    [row] = await db.fetch("queues/pause", queue, by, reason)
    return not row["was_paused"]


async def resume(db: Database, queue: str) -> bool:
    """Resume, and let the timers look where it stands in a line for tokens; returns whether it was paused."""
    async with db.transaction() as session:
        was_paused = bool(await session.fetch("queues/resume", queue))
        if was_paused:
            await session.fetch("limits/hasten_queue", queue)
    return was_paused


async def list_all(db: Queryable) -> list[Queue]:
    return [Queue(**row) for row in await db.fetch("queues/list", MOST_COUNTED)]
