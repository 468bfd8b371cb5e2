"""Calls of `sql/workers`: leases, beats and what has begun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stepwell._core.codec import decode_value, encode_value
from stepwell._core.faults import Refusal
from stepwell._core.records import Signal
from stepwell._store.database import Database, Queryable
from stepwell._store.units import StoredUnit
from stepwell._store.wire import SEPARATOR, numbers


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker runs: enough to tell, on the same host, whether it still does."""

    host: str
    boot: str
    pid: int
    process: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A worker entered for the same host and boot."""

    id: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True)
class Beat:
    """What the database says a worker carries."""

    carried: dict[int, int]  # instance to fence
    old: dict[int, str | None]  # those older than a beat, instance to concurrency key


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as operators see it."""

    id: int
    host: str
    pid: int
    release: str
    queues: dict[str, Any]
    machines: list[str]
    started_at: datetime
    beat_at: datetime
    alive: bool
    running: int


async def register(
    db: Queryable, place: Place, release: str, queues: dict[str, int], machines: Sequence[str], lease: timedelta
) -> int:
    rows = await db.fetch(
        "workers/register", place.host, place.boot, place.pid, place.process, release,
        encode_value(queues, "queues"), machines, lease,
    )  # fmt: skip
    return int(rows[0]["id"])


async def beat(db: Queryable, worker_id: int, lease: timedelta, running: int, old: timedelta) -> Beat | None:
    """Renew the lease; None if the worker was buried."""
    rows = await db.fetch("workers/beat", worker_id, lease, running, old)
    if not rows:
        return None
    [(carried, fences, old_ones, keys)] = rows
    return Beat(dict(zip(carried, fences, strict=True)), dict(zip(old_ones, keys, strict=True)))


class Begun(msgspec.Struct, frozen=True):
    """What claims begin with: their states by instance, and which of them came in by SQL and have met no type yet.
    Inboxes and units are here if they were read with them."""

    states: dict[int, str]
    unchecked: frozenset[int]
    inboxes: dict[int, tuple[Signal, ...]] = {}
    units: dict[int, StoredUnit] = {}


async def begin(
    db: Queryable, worker_id: int, begun_at: datetime, waiting: Sequence[int], ids: Sequence[int],
    *, by_limits: bool = False,
) -> Begun | None:  # fmt: skip
    """Note that claims begin; returns what with, or None if the lease is gone.

    `by_limits`: some of them have been admitted by limits, which need not be on the disk yet; it is then.
    """
    try:
        [(is_held, found, states, unchecked)] = await db.fetch(
            "workers/begin", worker_id, begun_at, numbers(waiting), numbers(ids), by_limits
        )
    except Refusal:  # together their states are more than Postgres can say in one text
        if len(ids) == 1:
            raise
        middle = len(ids) // 2
        one = await begin(db, worker_id, begun_at, waiting, ids[:middle], by_limits=by_limits)
        other = await begin(db, worker_id, begun_at, waiting, ids[middle:], by_limits=by_limits)
        if one is None or other is None:
            return None
        return Begun(one.states | other.states, one.unchecked | other.unchecked)
    if not is_held:
        return None
    read = {} if found is None else dict(zip(found, states.split(SEPARATOR), strict=True))
    return Begun(read, frozenset(unchecked or ()))


async def leave(db: Queryable, worker_ids: Sequence[int], *, by_itself: bool) -> None:
    """End leases: a worker's own when it has drained, or those of the dead."""
    await db.fetch("workers/leave", worker_ids, by_itself)


async def neighbours(db: Queryable, place: Place, worker_id: int) -> list[Neighbour]:
    return [Neighbour(*row) for row in await db.fetch("workers/neighbours", place.host, place.boot, worker_id)]


async def forget(db: Queryable) -> int:
    """Delete the rows of workers that are gone and carry nothing; returns how many."""
    return len(await db.fetch("workers/forget"))


async def registered(db: Queryable, labels: Sequence[str]) -> set[str]:
    """Those of the given name@version that some live worker registers."""
    return {row["name"] for row in await db.fetch("workers/registered", labels)}


async def list_all(db: Queryable) -> list[WorkerRow]:
    rows = await db.fetch("workers/list")
    return [WorkerRow(**{**row, "queues": decode_value(row["queues"])}) for row in rows]


@asynccontextmanager
async def elected(db: Database, duty: str) -> AsyncIterator[bool]:
    """Whether this process does the duty; as long as the block lasts, no other does."""
    async with db.transaction() as session:
        rows = await session.fetch("workers/elect", duty)
        yield bool(rows[0]["elected"])
