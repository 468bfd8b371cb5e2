"""Calls of `sql/concurrency_keys`: puts rows on hold for busy concurrency keys, and admits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stepwell._store import limits
from stepwell._store.connection.pool import Database, Queryable
from stepwell._store.connection.retry import by_halves
from stepwell._store.limits import FIRST, HeldRow

PAGE = 1_000  # keys, and limits, and rate limits, that one page of the search for idle ones reads
RATES_AT_ONCE = 100  # rate limits per transaction, as for the timers


async def lock(db: Queryable, keys: Sequence[str]) -> None:
    await db.fetch("concurrency_keys/lock", keys)


async def free(db: Queryable, keys: Sequence[str]) -> list[str]:
    """Admit the next row that waits for each key; returns the queues of these rows. Call `lock` first."""
    return [row["queue"] for row in await db.fetch("concurrency_keys/admit", keys)]


async def hold(db: Database, ids: Sequence[int], keys: Sequence[str]) -> dict[int, str | None]:
    """Put rows with busy keys on hold; returns them, each with its concurrency limit. The others may be claimable
    after all."""
    async with db.transaction() as session:
        await lock(session, keys)
        rows = await session.fetch("concurrency_keys/hold", ids)
    return {row["id"]: row["concurrency_limit"] for row in rows}


@dataclass(frozen=True, slots=True)
class Place:
    """The last entry of each kind that a search has read; None: it has read all of that kind."""

    key: str | None = ""
    limit: str | None = ""
    rate: str | None = ""
    held_row: HeldRow | None = FIRST


END = Place(None, None, None, None)


class IdleSearch:
    """Admits rows that wait for unheld keys, limits with free slots, or unwatched rate limits. Normally finds none.

    There may be a million keys and limits: each `look` reads a page of each kind, from where the last one ended.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._after = Place()

    @property
    def is_done(self) -> bool:
        """Whether all pages were read since `start_over`."""
        return self._after == END

    def start_over(self) -> None:
        """Start again with the first page of each kind that was read completely."""
        first, after = Place(), self._after
        self._after = Place(
            first.key if after.key is None else after.key,
            first.limit if after.limit is None else after.limit,
            first.rate if after.rate is None else after.rate,
            first.held_row if after.held_row is None else after.held_row,
        )

    async def look(self) -> list[str]:
        """Read the next page and admit its rows; returns their queues."""
        after = self._after
        [found] = await self._db.fetch("concurrency_keys/find_idle", after.key, after.limit, after.rate, PAGE)
        held_row = after.held_row if found["is_put_aside"] else None
        self._after = Place(found["last_key"], found["last_limit"], found["last_rate"], held_row)
        queues: list[str] = []
        # Each kind separately, and by halves: a locked entry delays no other, and the next search finds it again.
        for freed in (await by_halves(partial(_free_keys, self._db), found["keys"]))[0]:
            queues += freed
        for freed in (await by_halves(partial(_free_limits, self._db), found["limits"]))[0]:
            queues += freed
        rates = found["rates"]
        for first in range(0, len(rates), RATES_AT_ONCE):
            idle = rates[first : first + RATES_AT_ONCE]
            for freed, _ in (await by_halves(partial(limits.admit_due, self._db, wake=True), idle))[0]:
                queues += freed
        if held_row is not None:
            freed, held_row = await limits.unhold_page(self._db, held_row)
            self._after = replace(self._after, held_row=held_row)
            queues += freed
        return queues


async def free_idle(db: Database) -> list[str]:
    """Search one page; returns the queues of admitted rows. The reapers search the other pages."""
    return await IdleSearch(db).look()


async def _free_keys(db: Database, idle: Sequence[str]) -> list[str]:
    async with db.transaction() as session:
        await lock(session, idle)
        return await free(session, idle)


async def _free_limits(db: Database, idle: Sequence[str]) -> list[str]:
    async with db.transaction() as session:
        return await limits.free(session, idle, room=limits.SlotSource.FOUND)
