"""Calls of `sql/instances/prune`: deletes ended instances after their retention."""

from __future__ import annotations

from stepwell._store import signals
from stepwell._store.connection.pool import Database, Queryable

LARGE_INBOX = 1_000  # signals; a larger inbox is deleted in pages


async def prune(db: Database) -> tuple[int, int]:
    """Delete instances past their retention; returns how many, and the largest number of one machine.

    A large inbox is deleted in pages, in one transaction with its instance: no reader sees the one without the other.
    """
    deleted, largest, large = await _prune_small(db)
    if large:
        async with db.transaction(is_long=True) as session:
            found = [await _prune_small(session)]
            await signals.empty(session, found[0][2])
            found.append(await _prune_small(session))
        deleted, largest = deleted + sum(row[0] for row in found), largest + sum(row[1] for row in found)
    return deleted, largest


async def _prune_small(db: Queryable) -> tuple[int, int, list[int]]:
    """Delete instances without a large inbox; also returns those with one, which stay locked until the transaction
    ends."""
    [(deleted, largest, large)] = await db.fetch("instances/prune", LARGE_INBOX)
    return deleted, largest, large
