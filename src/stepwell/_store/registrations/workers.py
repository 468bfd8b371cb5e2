"""Calls of `sql/workers`: leases, beats, started claims, and connections of dead workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stepwell._core.instance import Claim, Signal
from stepwell._core.serialization.codec import decode_value, encode_value
from stepwell._core.store_errors import Refusal
from stepwell._store.await_units import StoredAwaitUnit
from stepwell._store.connection.pool import LONG, Database, Queryable
from stepwell._store.connection.settings import SERVER_SHARE
from stepwell._store.migrate import Stamp
from stepwell._store.operations.encoding import SEPARATOR, numbers


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """The process of a worker: enough for another process of the same host to tell whether it still runs."""

    host: str
    boot: str
    pid: int
    process: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A worker registered for the same host and boot."""

    id: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The claims of a worker, as the database has them."""

    carried: dict[int, int]  # instance to fence
    old: dict[int, str | None]  # claims older than a beat: instance to concurrency key
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Registered:
    """The id of a registered worker, and the stamp of the schema."""

    id: int
    stamp: Stamp


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
    db: Queryable, place: HostIdentity, release: str, queues: dict[str, int], machines: Sequence[str], lease: timedelta
) -> Registered:
    rows = await db.fetch(
        "workers/register", place.host, place.boot, place.pid, place.process, release,
        encode_value(queues, "queues"), machines, lease,
    )  # fmt: skip
    [(worker_id, version, oldest_code)] = rows
    return Registered(worker_id, Stamp(version, oldest_code, db.schema))


async def beat(
    db: Queryable, worker_id: int, place: HostIdentity, lease: timedelta, running: int, old: timedelta
) -> Beat | None:
    """Renew the lease; None if the row was deleted, or belongs to another process."""
    rows = await db.fetch(
        "workers/beat", worker_id, lease, running, old, place.host, place.boot, place.pid, place.process
    )
    if not rows:
        return None
    [(carried, fences, old_ones, keys, version, oldest_code)] = rows
    return Beat(
        dict(zip(carried, fences, strict=True)), dict(zip(old_ones, keys, strict=True)),
        Stamp(version, oldest_code, db.schema),
    )  # fmt: skip


class StartedClaims(msgspec.Struct, frozen=True):
    """The inputs of started claims: states by instance, and which of them came from SQL and no type has checked yet.
    Inboxes and units only if the statement has read them too."""

    states: dict[int, str]
    unchecked: frozenset[int]
    inboxes: dict[int, tuple[Signal, ...]] = {}
    units: dict[int, StoredAwaitUnit] = {}


async def mark_started(db: Queryable, begun_at: datetime, waiting: Sequence[int],
                       claims: Sequence[Claim]) -> StartedClaims | None:
    """Mark claims of one worker started; returns the states of those that still hold, or None if the lease has ended.

    Claims under limits may not be durable before; they are afterwards.
    """
    worker_id = claims[-1].worker_id
    try:
        [(is_there, held, fences, found, states, unchecked)] = await db.fetch(
            "workers/mark_started", worker_id, begun_at, numbers(waiting), numbers([claim.id for claim in claims]),
            any(claim.needs is not None for claim in claims),
        )  # fmt: skip
    except Refusal:  # their states together are too large for one text
        if len(claims) == 1:
            raise
        middle = len(claims) // 2
        one = await mark_started(db, begun_at, waiting, claims[:middle])
        other = await mark_started(db, begun_at, waiting, claims[middle:])
        if one is None or other is None:
            return None
        return StartedClaims(one.states | other.states, one.unchecked | other.unchecked)
    if not is_there:
        return None
    if held is None or found is None:
        return StartedClaims({}, frozenset())
    holding, read = dict(zip(held, fences, strict=True)), dict(zip(found, states.split(SEPARATOR), strict=True))
    ours = {claim.id: read[claim.id] for claim in claims if holding.get(claim.id) == claim.fence and claim.id in read}
    return StartedClaims(ours, frozenset(unchecked or ()))


async def leave(db: Queryable, worker_ids: Sequence[int], *, by_itself: bool) -> None:
    """End leases: of a worker that has drained, or of dead workers."""
    await db.fetch("workers/leave", worker_ids, by_itself)


async def neighbours(db: Queryable, place: HostIdentity, worker_id: int) -> list[Neighbour]:
    return [Neighbour(*row) for row in await db.fetch("workers/neighbours", place.host, place.boot, worker_id)]


async def forget(db: Queryable, worker_id: int, lease: timedelta) -> int:
    """Delete the rows of dead workers without claims, as seen by this worker; returns how many."""
    return len(await db.fetch("workers/forget", worker_id, lease))


async def registered(db: Queryable, labels: Sequence[str]) -> set[str]:
    """The given versions (name@version) that a live worker has registered."""
    return {row["name"] for row in await db.fetch("workers/registered", labels)}


async def list_all(db: Queryable) -> list[WorkerRow]:
    rows = await db.fetch("workers/list")
    return [WorkerRow(**{**row, "queues": decode_value(row["queues"])}) for row in rows]


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction or slot that keeps vacuum from removing dead rows. `since` is None for slots, and if hidden."""

    kind: str
    name: str  # the pid of a transaction
    application: str
    state: str | None
    since: datetime | None
    number: str | None  # of a transaction with a start time that is hidden from this role


async def find_holders(db: Queryable, worker_id: int, longer_than: timedelta, slot_age: int) -> list[Holder]:
    """The holders that have blocked vacuum for that long, or with a hidden start time; only one live worker gets any.
    """
    return [Holder(**row) for row in await db.fetch("workers/find_vacuum_blockers", worker_id, longer_than, slot_age)]


@dataclass(frozen=True, slots=True)
class Ended:
    """Terminated connections, by the pids of their server processes."""

    stalled: list[int]  # their process froze within a statement
    of_steps: list[int]  # in a step of a worker without a lease


async def end_stalled(
    db: Queryable, worker_id: int, lease: timedelta, longest: timedelta, longest_of_clients: timedelta
) -> Ended:
    """Terminate connections of processes that have been frozen within a statement for that long, and those of steps of
    workers without a lease, as seen by `worker_id`."""
    slow = timedelta(seconds=LONG / SERVER_SHARE)
    rows = await db.fetch("workers/end_stalled", longest, longest_of_clients, slow, worker_id, lease)
    return Ended(
        [row["pid"] for row in rows if row["is_stalled"]],
        [row["pid"] for row in rows if not row["is_stalled"]]
    )


@asynccontextmanager
async def elected(db: Database, duty: str) -> AsyncIterator[bool]:
    """Whether this process has the duty; no other process gets it during the block."""
    async with db.transaction() as session:
        rows = await session.fetch("workers/elect", duty)
        yield bool(rows[0]["elected"])
