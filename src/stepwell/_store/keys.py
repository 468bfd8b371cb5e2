"""Calls of `sql/keys`: who waits behind a busy concurrency key, and who goes when it is free."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._store import limits
from stepwell._store.database import Database, Queryable


async def lock(db: Queryable, keys: Sequence[str]) -> None:
    await db.fetch("keys/lock", keys)


async def free(db: Queryable, keys: Sequence[str]) -> list[str]:
    """Let the next one behind each key go; returns their queues. Under `lock`."""
    return [row["queue"] for row in await db.fetch("keys/free", keys)]


async def hold(db: Database, ids: Sequence[int], keys: Sequence[str]) -> dict[int, str | None]:
    """Put rows behind their busy keys; returns those that were, each with its concurrency limit. The others may be
    claimed after all."""
    async with db.transaction() as session:
        await lock(session, keys)
        rows = await session.fetch("keys/hold", ids)
    return {row["id"]: row["concurrency_limit"] for row in rows}


async def free_idle(db: Database) -> list[str]:
    """Let go what waits behind keys nobody holds, and limits with room; returns the queues. Normally finds nothing."""
    rows = await db.fetch("keys/find_idle")
    if not rows:
        return []
    idle = [row["key"] for row in rows if row["kind"] == "key"]
    roomy = [row["key"] for row in rows if row["kind"] == "limit"]
    async with db.transaction() as session:
        if idle:
            await lock(session, idle)
        queues = await free(session, idle) if idle else []
        queues += await limits.free(session, roomy, all_room=True)
    return queues + sorted(await limits.unhold(db)) if len(rows) > len(idle) + len(roomy) else queues
