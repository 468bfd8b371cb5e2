"""Calls of `sql/instances`: start, claim, commit, reap and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from stepwell._core.codec import decode_value
from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.records import Claim, Failure, Instance
from stepwell._core.status import Hold, Status
from stepwell._store import keys
from stepwell._store.database import Database, Queryable, Row


@dataclass(frozen=True, slots=True)
class Started:
    """One inserted instance; `later` if it waits for its due time."""

    position: int
    id: int
    queue: str
    later: bool


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the claim's window that was not claimed."""

    id: int
    label: str  # name@version
    concurrency_key: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim: what is ours, what waits behind a busy key, what we do not know, what to try again."""

    claims: list[Claim]
    busy: list[Contender]
    foreign: list[Contender]
    missed: bool

    @property
    def window(self) -> int:
        """How many rows were looked at."""
        return len(self.claims) + len(self.busy) + len(self.foreign)


@dataclass(frozen=True, slots=True)
class Committed:
    """A row after its commit, and what to tell whom."""

    id: int
    status: Status
    queue: str
    hold: Hold | None
    watched: bool


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer to a flush: rows that committed, and queues in which a row behind a key was let go."""

    committed: list[Committed]
    freed_queues: list[str]


@dataclass(frozen=True, slots=True)
class Reaped:
    """A row taken from a dead worker."""

    id: int
    status: Status
    queue: str
    watched: bool
    begun: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """What the row of a claim looks like now."""

    fence: int
    worker_id: int | None
    status: Status


@dataclass(frozen=True, slots=True)
class Tick:
    """The answer to a look at the clock."""

    freed: int
    freed_queues: list[str]
    ready: list[str]
    next_due: float | None  # seconds


async def start(db: Queryable, entries: Sequence[NewInstance]) -> list[Started]:
    rows = await db.fetch(
        "instances/start",
        [e.machine for e in entries],
        [e.version for e in entries],
        [e.step for e in entries],
        [e.queue for e in entries],
        [e.priority for e in entries],
        [e.delay for e in entries],
        [e.at for e in entries],
        [e.tenant for e in entries],
        [None] * len(entries),
        [None] * len(entries),
        [e.concurrency_key for e in entries],
        [e.state for e in entries],
    )
    return [Started(*row) for row in rows]


async def claim(
    db: Queryable, worker_id: int, queue: str, limit: int, labels: Sequence[str], passed_over: Sequence[str] = ()
) -> Claimed:
    rows = await db.fetch("instances/claim", worker_id, queue, limit, labels, passed_over)
    claims: list[Claim] = []
    losers: dict[str, list[Contender]] = {"busy": [], "foreign": [], "missed": []}
    for verdict, id_, machine, version, key, fence, step, attempt, crashes, tenant, business_key, at, *_ in rows:
        if verdict == "claimed":
            claims.append(
                Claim(id_, worker_id, fence, machine, version, step, attempt, crashes, tenant, business_key, key,
                      queue, at)
            )  # fmt: skip
        else:
            losers[verdict].append(Contender(id_, f"{machine}@{version}", key))
    return Claimed(claims, losers["busy"], losers["foreign"], bool(losers["missed"]))


async def flush(db: Database, commits: Sequence[Commit]) -> Flushed:
    """Commit outcomes together. Those with a concurrency key free it for the next one in the same transaction."""
    held = [c.claim.concurrency_key for c in commits if c.claim.concurrency_key is not None]
    if not held:
        return Flushed(await _commit(db, commits), [])
    async with db.transaction() as session:
        await keys.lock(session, held)
        committed = await _commit(session, commits)
        freed = await keys.free(session, held)
    return Flushed(committed, freed)


async def _commit(db: Queryable, commits: Sequence[Commit]) -> list[Committed]:
    rows = await db.fetch(
        "instances/commit",
        [c.claim.id for c in commits],
        [c.claim.worker_id for c in commits],
        [c.claim.fence for c in commits],
        [c.status for c in commits],
        [c.step for c in commits],
        [c.version for c in commits],
        [c.attempt for c in commits],
        [c.delay for c in commits],
        [c.queue for c in commits],
        [c.priority for c in commits],
        [c.switches_key for c in commits],
        [c.concurrency_key for c in commits],
        [c.hold for c in commits],
        [c.hold_reason for c in commits],
        [c.stores for c in commits],
        [c.state for c in commits],
        [c.result for c in commits],
        [c.error for c in commits],
    )
    return [
        Committed(id_, Status(status), queue, None if hold is None else Hold(hold), watched)
        for id_, status, queue, hold, watched in rows
    ]


async def verify(db: Queryable, ids: Sequence[int]) -> dict[int, Trace]:
    rows = await db.fetch("instances/verify", ids)
    return {id_: Trace(fence, worker, Status(status)) for id_, fence, worker, status in rows}


async def tick(db: Queryable, queues: Sequence[str]) -> Tick:
    [(freed, freed_queues, ready, next_due)] = await db.fetch("instances/tick", queues)
    return Tick(freed, list(freed_queues), list(ready), next_due)


async def release(db: Database, worker_id: int, claims: Sequence[tuple[int, str | None]]) -> list[str]:
    """Give back claims, each with its concurrency key; returns the queues to wake."""
    ids = [id_ for id_, _ in claims]
    held = [key for _, key in claims if key is not None]
    async with db.transaction() as session:
        if held:
            await keys.lock(session, held)
        rows = await session.fetch("instances/release", worker_id, ids)
        freed = await keys.free(session, held) if held else []
    return [row["queue"] for row in rows] + freed


async def find_lost(db: Queryable, worker_id: int, lease: timedelta) -> list[tuple[int, str | None]]:
    """Executing rows without a live lease, with their keys, if this worker may act as reaper."""
    return [(id_, key) for id_, key in await db.fetch("instances/find_lost", worker_id, lease)]


async def find_carried(db: Queryable, worker_ids: Sequence[int]) -> list[tuple[int, str | None]]:
    """Executing rows of the given workers, with their keys."""
    return [(id_, key) for id_, key in await db.fetch("instances/find_carried", worker_ids)]


async def reap(
    db: Database, lost: Sequence[tuple[int, str | None]], max_crashes: int
) -> tuple[list[Reaped], list[str]]:
    """Take rows from workers without a live lease; returns them, and the queues in which a key was freed."""
    held = [key for _, key in lost if key is not None]
    async with db.transaction() as session:
        if held:
            await keys.lock(session, held)
        rows = await session.fetch("instances/reap", [id_ for id_, _ in lost], max_crashes)
        freed = await keys.free(session, held) if held else []
    reaped = [Reaped(id_, Status(status), queue, watched, begun) for id_, status, queue, watched, begun in rows]
    return reaped, freed


async def hold_foreign(db: Queryable, ids: Sequence[int]) -> list[int]:
    return [row["id"] for row in await db.fetch("instances/hold_foreign", ids)]


FULL_UNHOLD = 1_000


async def unhold_version(
    db: Queryable, labels: Sequence[str] = (), upcasting: Sequence[str] = (), *, also_unfit: bool = False
) -> set[str]:
    """Free what some live worker, the given versions or an upcast can run; returns the queues to wake."""
    queues: set[str] = set()
    while True:
        rows = await db.fetch("instances/unhold_version", labels, also_unfit, upcasting)
        queues.update(row["queue"] for row in rows)
        if len(rows) < FULL_UNHOLD:
            return queues


async def read(db: Queryable, ids: Sequence[int]) -> list[Instance]:
    return [_instance(row) for row in await db.fetch("instances/read", ids)]


async def find_key(db: Queryable, tenant: str, key: str) -> int | None:
    rows = await db.fetch("instances/find_key", tenant, key)
    return rows[0]["id"] if rows else None


async def watch(db: Queryable, id_: int) -> str | None:
    """Mark as watched; returns the queue if the row may be claimed and a claim may just have passed it over."""
    rows = await db.fetch("instances/watch", id_)
    return rows[0]["queue"] if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which instances to list; None filters nothing."""

    statuses: tuple[Status, ...] | None = None
    machine: str | None = None
    version: int | None = None
    step: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None


async def list_page(db: Queryable, wanted: Filter, *, below: int | None, limit: int) -> list[Instance]:
    rows = await db.fetch(
        "instances/list", below, wanted.statuses, wanted.machine, wanted.version, wanted.step, wanted.queue,
        wanted.tenant, wanted.key, wanted.created_from, wanted.created_before, limit,
    )  # fmt: skip
    return [_instance(row) for row in rows]


def _instance(row: Row) -> Instance:
    fields: dict[str, Any] = dict(row)
    error = fields["error"]
    fields |= {
        "status": Status(fields["status"]),
        "hold": None if fields["hold"] is None else Hold(fields["hold"]),
        "awaits": tuple(fields["awaits"] or ()),
        "state": decode_value(fields["state"]),
        "result": None if fields["result"] is None else decode_value(fields["result"]),
        "error": None if error is None else Failure(**decode_value(error)),
    }
    return Instance(**fields)
