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
    """Let go what waits behind keys nobody holds, limits with room, and rates nobody looks at; returns the queues.
    Normally finds nothing."""
    found: dict[str, list[str]] = {"key": [], "limit": [], "rate": [], "put aside": []}
    for row in await db.fetch("keys/find_idle"):
        found[row["kind"]].append(row["key"])
    queues: list[str] = []
    if found["key"] or found["limit"]:
        async with db.transaction() as session:
            if idle := found["key"]:
                await lock(session, idle)
                queues += await free(session, idle)
            queues += await limits.free(session, found["limit"], room=limits.Room.FOUND)
    if found["rate"]:
        queues += (await limits.flow(db, found["rate"], rouse=True))[0]
    if found["put aside"]:
        queues += sorted(await limits.unhold(db))
    return queues
