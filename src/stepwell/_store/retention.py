"""Calls of `sql/instances/prune`: deletes what ended longer ago than its retention."""

from __future__ import annotations

from stepwell._store import signals
from stepwell._store.connection.pool import Database, Queryable

LARGE_INBOX = 1_000  # signals; one that has more is pruned in pages


async def prune(db: Database) -> tuple[int, int]:
    """Delete what has ended and is old enough; returns how many, and the most of one machine. Nobody sees an instance
    without its inbox: a large one is deleted in pages, in one transaction with its instance."""
    deleted, largest, large = await _prune_small(db)
    if large:
        async with db.transaction(is_long=True) as session:
            found = [await _prune_small(session)]
            await signals.empty(session, found[0][2])
            found.append(await _prune_small(session))
        deleted, largest = deleted + sum(row[0] for row in found), largest + sum(row[1] for row in found)
    return deleted, largest


async def _prune_small(db: Queryable) -> tuple[int, int, list[int]]:
    """Delete those that have no large inbox; returns also those that have one, which are locked to the end of the
    transaction."""
    [(deleted, largest, large)] = await db.fetch("instances/prune", LARGE_INBOX)
    return deleted, largest, large
