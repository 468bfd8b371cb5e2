"""Calls of `sql/concurrency_keys`: rows that wait for a busy concurrency key, and which run when it is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stepwell._store import limits
from stepwell._store.connection.pool import Database, Queryable
from stepwell._store.connection.retry import by_halves
from stepwell._store.limits import FIRST, Aside

PAGE = 1_000  # keys, limits and rate limits, each, that one look for idle ones sees
RATES_AT_ONCE = 100  # rate limits that admit in one transaction, as many as the timers take


async def lock(db: Queryable, keys: Sequence[str]) -> None:
    await db.fetch("concurrency_keys/lock", keys)


async def free(db: Queryable, keys: Sequence[str]) -> list[str]:
    """Let the next one behind each key go; returns their queues. Under `lock`."""
    return [row["queue"] for row in await db.fetch("concurrency_keys/admit", keys)]


async def hold(db: Database, ids: Sequence[int], keys: Sequence[str]) -> dict[int, str | None]:
    """Put rows behind their busy keys; returns those that were, each with its concurrency limit. The others may be
    claimed after all."""
    async with db.transaction() as session:
        await lock(session, keys)
        rows = await session.fetch("concurrency_keys/hold", ids)
    return {row["id"]: row["concurrency_limit"] for row in rows}


@dataclass(frozen=True, slots=True)
class Place:
    """What a search has looked at last, of each kind; None: it has come to the end of that."""

    key: str | None = ""
    limit: str | None = ""
    rate: str | None = ""
    aside: Aside | None = FIRST


END = Place(None, None, None, None)


class IdleSearch:
    """Lets go what waits behind keys nobody holds, limits with room, and rates nobody looks at. Normally finds nothing.

    There may be a million of them: a look sees a page of each kind, and the next one goes on where it ended.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._after = Place()

    @property
    def is_over(self) -> bool:
        """Whether all was looked at since `start_over`."""
        return self._after == END

    def start_over(self) -> None:
        """Look at those kinds from the beginning of which all was looked at."""
        first, after = Place(), self._after
        self._after = Place(
            first.key if after.key is None else after.key,
            first.limit if after.limit is None else after.limit,
            first.rate if after.rate is None else after.rate,
            first.aside if after.aside is None else after.aside,
        )

    async def look(self) -> list[str]:
        """Look at the next page; returns the queues of what goes on."""
        after = self._after
        [found] = await self._db.fetch("concurrency_keys/find_idle", after.key, after.limit, after.rate, PAGE)
        aside = after.aside if found["is_put_aside"] else None
        self._after = Place(found["last_key"], found["last_limit"], found["last_rate"], aside)
        queues: list[str] = []
        # Each kind apart, and by halves: what another transaction has locked stops nothing else, and is found again.
        for freed in (await by_halves(partial(_free_keys, self._db), found["keys"]))[0]:
            queues += freed
        for freed in (await by_halves(partial(_free_limits, self._db), found["limits"]))[0]:
            queues += freed
        rates = found["rates"]
        for first in range(0, len(rates), RATES_AT_ONCE):
            idle = rates[first : first + RATES_AT_ONCE]
            for let_go, _ in (await by_halves(partial(limits.admit_due, self._db, rouse=True), idle))[0]:
                queues += let_go
        if aside is not None:
            let_go, aside = await limits.unhold_page(self._db, aside)
            self._after = replace(self._after, aside=aside)
            queues += let_go
        return queues


async def free_idle(db: Database) -> list[str]:
    """Let the first of them go, once; returns the queues. What is beyond a page is the reapers'."""
    return await IdleSearch(db).look()


async def _free_keys(db: Database, idle: Sequence[str]) -> list[str]:
    async with db.transaction() as session:
        await lock(session, idle)
        return await free(session, idle)


async def _free_limits(db: Database, idle: Sequence[str]) -> list[str]:
    async with db.transaction() as session:
        return await limits.free(session, idle, room=limits.SlotSource.FOUND)
