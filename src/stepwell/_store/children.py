"""Calls of `sql/children`: spawns and joins."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._core.instance import Child, Failure
from stepwell._core.serialization.codec import decode_value
from stepwell._core.status import STATUSES
from stepwell._store.connection.pool import Database, Queryable

PAGE = 5_000  # children of one parent per statement


async def lock_parents(db: Queryable, ids: Sequence[int]) -> set[int]:
    """Lock parents; returns those that no other transaction has locked, and those that no longer exist."""
    return {row["id"] for row in await db.fetch("children/lock_parents", ids)}


async def join(db: Queryable, ends: Sequence[tuple[int, int]]) -> list[str]:
    """Count ended children, given as (parent, round); returns the queues of parents that became claimable."""
    rows = await db.fetch("children/join", [parent for parent, _ in ends], [round_ for _, round_ in ends])
    return [row["queue"] for row in rows]


async def settle(db: Queryable, counts: dict[int, int]) -> list[str]:
    """Correct how many children parents wait for; returns the queues of parents that became claimable."""
    rows = await db.fetch("children/settle", list(counts), list(counts.values()))
    return [row["queue"] for row in rows]


async def find_childless(db: Queryable, after: int) -> tuple[int | None, list[int]]:
    """Parents after this one that wait although all their children have ended; returns the last parent that was checked
    (None at the end), and the ids."""
    [(last, ids)] = await db.fetch("children/find_childless", after)
    return last, ids


async def recount(db: Database, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Recount for how many children parents wait; returns those that became claimable, with their queues. Locked
    parents are left for the next check."""
    async with db.transaction() as session:
        locked = await lock_parents(session, ids)
        return [(row["id"], row["queue"]) for row in await session.fetch("children/recount", sorted(locked))]


async def load(db: Queryable, rounds: dict[int, int]) -> dict[int, tuple[Child, ...]]:
    """Children of the given rounds by parent, in spec order; large numbers page by page."""
    found: dict[int, list[Child]] = {}
    await _load_page(db, rounds, -1, found)
    for parent in [parent for parent, children in found.items() if len(children) == PAGE]:
        while await _load_page(db, {parent: rounds[parent]}, found[parent][-1].index, found) == PAGE:
            pass
    return {parent: tuple(children) for parent, children in found.items()}


async def _load_page(db: Queryable, rounds: dict[int, int], after: int, found: dict[int, list[Child]]) -> int:
    rows = await db.fetch("children/load", list(rounds), list(rounds.values()), after, PAGE)
    for parent, index, id_, key, machine, version, status, state, result, error in rows:
        child = Child(
            index, id_, key, machine, version, STATUSES[status], decode_value(state),
            None if result is None else decode_value(result),
            None if error is None else Failure(**decode_value(error)),
        )  # fmt: skip
        found.setdefault(parent, []).append(child)
    return len(rows)
