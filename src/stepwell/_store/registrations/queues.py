"""Calls of `sql/queues`: declare, pause, resume and list queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stepwell._store.connection.pool import Database, Queryable

SHORTEST_LOOK, LONGEST_LOOK = 0.005, 0.2  # seconds between checks for running claims, which a pause waits for
PAGE = 5_000  # buckets that one statement checks
MOST_COUNTED = 10_000  # runnable rows counted per queue, and held rows counted per reason


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as operators see it."""

    name: str
    fair_by: str | None  # the value by which tenants take turns; None: the queue is not fair
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None  # of the pause
    runnable: int  # rows without a hold: they wait for a slot, or for the end of a pause; counted up to 10,000
    executing: int
    held: int | None  # rows on hold: due time, key, limit, version; None if there are too many to count

    @property
    def is_paused(self) -> bool:
        """Whether nothing is claimed from it."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True)
class Declared:
    """A changed declaration; `is_changed` if the queue had another fairness key before."""

    queue: str
    fair_by: str | None
    is_changed: bool


async def declare(db: Queryable, fair_by: Mapping[str, str | None]) -> list[Declared]:
    """Write the fairness key of each queue; returns the new and changed ones."""
    return [Declared(*row) for row in await db.fetch("queues/declare", [*fair_by], [*fair_by.values()])]


async def pause(db: Database, queue: str, reason: str | None, by: str | None) -> bool:
    """Pause a queue, and wait until running claims have ended; returns False if it was paused before."""
    [row] = await db.fetch("queues/pause", queue, by, reason)
    await claims_ended(db)
    return not row["was_paused"]


async def claims_ended(db: Database) -> None:
    """Wait until every claim has ended that may have read pauses and limits before the last commit.

    It polls: if claims shared a lock for this, any role could take that lock.
    """
    left: list[str] | None = None
    pause = SHORTEST_LOOK
    while left := [row["transaction"] for row in await db.fetch("queues/find_claiming", left)]:
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK)


async def resume(db: Database, queue: str) -> bool:
    """Resume a queue, and let the timers check the buckets that its rows wait for; returns whether it was paused.

    The first page of buckets is in the transaction that resumes, the others follow. If the call is interrupted, the
    queue is resumed, and the timers check the other buckets when they are due, or after a second call.
    """
    async with db.transaction() as session:
        was_paused = bool(await session.fetch("queues/resume", queue))
        after = await _hasten(session, queue, "")
    while after is not None:
        after = await _hasten(db, queue, after)
    return was_paused


async def _hasten(db: Queryable, queue: str, after: str) -> str | None:
    """Let the timers check one page of the buckets; returns where the next page starts."""
    rows = await db.fetch("limits/recheck_rates_of_queue", queue, after, PAGE)
    return rows[0]["last"] if rows else None


async def list_all(db: Queryable) -> list[Queue]:
    return [Queue(**row) for row in await db.fetch("queues/list", MOST_COUNTED)]


async def migrate(db: Queryable, queues: Sequence[str]) -> list[str]:
    """Correct the share of a page of rows of these queues; returns the queue of each."""
    return [row["queue"] for row in await db.fetch("fair_queues/migrate", queues)]
