"""Calls of `sql/keys`: who waits behind a busy concurrency key, and who goes when it is free."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._store.database import Database, Queryable


async def lock(db: Queryable, keys: Sequence[str]) -> None:
    await db.fetch("keys/lock", keys)


async def free(db: Queryable, keys: Sequence[str]) -> list[str]:
    """Let the next one behind each key go; returns their queues. Under `lock`."""
    return [row["queue"] for row in await db.fetch("keys/free", keys)]


async def hold(db: Database, ids: Sequence[int], keys: Sequence[str]) -> list[int]:
    """Put rows behind their busy keys; returns those that were, the others may be claimed after all."""
    async with db.transaction() as session:
        await lock(session, keys)
        rows = await session.fetch("keys/hold", ids)
    return [row["id"] for row in rows]


async def free_idle(db: Database) -> list[str]:
    """Let go what waits behind keys nobody holds; returns the queues. Normally finds nothing."""
    idle = [row["key"] for row in await db.fetch("keys/find_idle")]
    if not idle:
        return []
    async with db.transaction() as session:
        await lock(session, idle)
        return await free(session, idle)
