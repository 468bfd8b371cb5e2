"""Calls of `sql/limits`: who may run by the limits, who waits in their lines, and who goes when there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import assert_never

from stepwell._core.admission import Admission, Bucket, Candidate, Gate
from stepwell._core.admission import admit as decide
from stepwell._core.needs import Needs
from stepwell._core.records import Claim
from stepwell._store.database import Database, Queryable, Row, Session
from stepwell.limits import Limit, LimitKind, RateLimit, kind_of

FULL_UNHOLD = 1_000
FULL_LOOK = 1_000


class Room(Enum):
    """How somebody who lets a line go knows of room."""

    MADE = "made"  # he made it: one goes for each time a limit is named
    ALL = "all"  # the limit has changed: as many go as there is room for
    FOUND = "found"  # he looks in now and then: others may have been let go already


@dataclass(frozen=True, slots=True)
class Held:
    """A row that was put aside by a limit."""

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    tenant: str
    key: str | None
    parent_id: int | None
    priority: int

    @classmethod
    def of(cls, row: Row) -> Held:
        return cls(*[row[field.name] for field in fields(cls)])


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of rows that need limits."""

    claims: list[Claim]
    held: list[Held]
    left: int  # neither claimed nor held: to be looked at again
    queues: list[str]  # of others that go on by it
    wait: float | None  # seconds until the first line of tokens moves


async def admit(db: Database, worker_id: int, queue: str, ids: Sequence[int]) -> Admitted:
    """Claim those of the rows that may run by their limits, and put the others aside."""
    async with db.transaction() as session:
        locked = {(kind, key) for kind, key, _ in await session.fetch("limits/lock_rows", ids)}
        if not locked:
            return Admitted([], [], len(ids), [], None)
        candidates, gates, buckets = _seen(await session.fetch("limits/look", ids, queue))
        ready = [row for row in candidates if _is_locked(row, locked)]
        decided = decide(ready, gates, buckets)
        changed = {key: bucket for key, bucket in buckets.items() if bucket.is_changed}
        rows = await _write(session, worker_id, decided, changed) if decided.admitted or decided.held else []
        queues = await free(session, decided.passed_on) if decided.passed_on else []
    waits = [bucket.wait for bucket in changed.values() if bucket.wait is not None]
    return Admitted(
        [_claim(row, worker_id, queue) for row in rows if row["verdict"] == "claimed"],
        [Held.of(row) for row in rows if row["verdict"] == "held"],
        len(ids) - len(rows),
        queues,
        min(waits, default=None),
    )


async def _write(session: Session, worker_id: int, decided: Admission, buckets: dict[str, Bucket]) -> list[Row]:
    return await session.fetch(
        "limits/admit",
        worker_id,
        [id_ for id_, _ in decided.admitted],
        [slot for _, slot in decided.admitted],
        [id_ for id_, _, _ in decided.held],
        [hold for _, hold, _ in decided.held],
        [reason for _, _, reason in decided.held],
        list(buckets),
        [bucket.tokens for bucket in buckets.values()],
        [bucket.wait for bucket in buckets.values()],
    )


def _seen(rows: Iterable[Row]) -> tuple[list[Candidate], dict[str, Gate], dict[str, Bucket]]:
    candidates, gates, buckets = list[Candidate](), dict[str, Gate](), dict[str, Bucket]()
    for what, id_, priority, due_at, limit, rate, weight, is_busy, n, taken, per_second, tokens in rows:
        match what:
            case "row":
                candidates.append(Candidate(id_, (priority, due_at, id_), limit, rate, weight, is_busy))
            case "limit":
                gates[limit] = Gate(n, set(taken))
            case "rate":
                buckets[rate] = Bucket(n, per_second or 0.0, tokens or 0.0)
            case "head":
                buckets[rate].see((priority, due_at, id_), weight)
            case _:
                buckets[rate].see_idle((priority, due_at, id_), weight)
    return candidates, gates, buckets


def _is_locked(row: Candidate, locked: set[tuple[str, str]]) -> bool:
    needed = {("limit", row.concurrency_limit), ("rate", row.rate_limit)}
    return all(key is None or (kind, key) in locked for kind, key in needed)


def _claim(row: Row, worker_id: int, queue: str) -> Claim:
    return Claim(
        id=row["id"], worker_id=worker_id, fence=row["fence"], machine=row["machine"], version=row["version"],
        step=row["step"], attempt=row["attempt"], crashes=row["crashes"], tenant=row["tenant"], key=row["key"],
        concurrency_key=row["concurrency_key"], queue=queue, claimed_at=row["claimed_at"], has_inbox=row["has_inbox"],
        awaits=tuple(row["awaits"] or ()), parent_id=row["parent_id"], round=row["round"], priority=row["priority"],
        needs=Needs(row["concurrency_limit"], row["own_limit"], row["rate_limit"], row["weight"]),
        unit_id=row["await_unit_id"],
    )  # fmt: skip


async def free(db: Queryable, keys: Iterable[str], *, room: Room = Room.MADE) -> list[str]:
    """Let the next ones behind each limit go: one for each time it is named, or as many as there is room for.

    Locks the limits first; returns the queues of those that go.
    """
    counts = Counter(keys)
    if not counts:
        return []
    await db.fetch("limits/lock", list(counts))
    most = [_most(room, number) for number in counts.values()]
    rows = await db.fetch("limits/free", list(counts), most, room is Room.FOUND)
    return [row["queue"] for row in rows]


def _most(room: Room, named: int) -> int | None:
    match room:
        case Room.MADE:
            return named
        case Room.ALL:
            return None
        case Room.FOUND:
            return FULL_LOOK
        case _:
            assert_never(room)


def named(rows: Iterable[Row]) -> list[str]:
    """The concurrency limits of rows that took no slot, or gave one back."""
    return [row["concurrency_limit"] for row in rows if row["concurrency_limit"] is not None]


async def flow(db: Database, keys: Sequence[str], *, rouse: bool = False) -> tuple[list[str], float | None]:
    """Let go whom there are tokens for by now; returns the queues, and the seconds to the next one. With `rouse` lines
    are looked at before their time."""
    async with db.transaction() as session:
        await session.fetch("limits/lock_rates", keys)
        if rouse:
            await session.fetch("limits/rouse", keys)
        [(queues, wait)] = await session.fetch("limits/flow", keys)
    return list(queues), wait


async def declare(db: Database, declared: Sequence[Limit]) -> set[str]:
    """Make limits known as the code declares them, and let go what they let go; returns the queues to wake."""
    if not declared:
        return await unhold(db)
    async with db.transaction() as session:
        changed = await session.fetch("limits/declare", *_columns(declared))
        queues = await _let_go(session, [(row["kind"], row["name"]) for row in changed])
    return queues | await unhold(db)


async def introduce(db: Queryable, declared: Sequence[Limit]) -> None:
    """Make limits known that the database does not know yet."""
    if declared:
        await db.fetch("limits/introduce", *_columns(declared))


async def unhold(db: Queryable) -> set[str]:
    """Let go what waited for a limit that was missing, or too small; returns the queues."""
    queues: set[str] = set()
    while True:
        rows = await db.fetch("limits/unhold")
        queues.update(row["queue"] for row in rows)
        if len(rows) < FULL_UNHOLD:
            return queues


async def _let_go(session: Session, changed: Sequence[tuple[str, str]]) -> set[str]:
    """Let the lines of changed limits go as far as there is room; those of tokens are looked at by the timers."""
    rates = [name for kind, name in changed if kind == "rate"]
    if rates:
        await session.fetch("limits/hasten", rates)
    slots = [name for kind, name in changed if kind == "concurrency"]
    lines = [row["key"] for row in await session.fetch("limits/find_lines", slots)] if slots else []
    return set(await free(session, lines, room=Room.ALL))


def _columns(declared: Sequence[Limit]) -> tuple[list[object], ...]:
    return (
        [kind_of(limit) for limit in declared],
        [limit.name for limit in declared],
        [limit.n for limit in declared],
        [limit.per if isinstance(limit, RateLimit) else None for limit in declared],
        [limit.burst if isinstance(limit, RateLimit) else None for limit in declared],
    )


async def prune(db: Queryable) -> None:
    """Delete buckets that are full again."""
    await db.fetch("limits/prune")


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit as operators see it: as it is, as the code declares it, and who runs and waits behind all its parts."""

    kind: LimitKind
    name: str
    n: int
    per: timedelta | None
    burst: int | None
    version: int
    changed_at: datetime
    changed_by: str | None
    declared_n: int
    declared_per: timedelta | None
    declared_burst: int | None
    executing: int | None  # by a rate limit nobody counts them
    waiting: int

    @property
    def is_changed(self) -> bool:
        """Whether it is another one than the code declares."""
        return (self.n, self.per, self.burst) != (self.declared_n, self.declared_per, self.declared_burst)


async def list_all(db: Queryable) -> list[LimitRow]:
    return [LimitRow(*row) for row in await db.fetch("limits/list")]


async def change(
    db: Database, kind: LimitKind, name: str, n: int | None, per: timedelta | None, burst: int | None, by: str | None
) -> set[str]:
    """Change a limit, once admissions under way have ended, and let go what it lets go; returns the queues to wake."""
    async with db.transaction() as session:
        await _lock_name(session, kind, name)
        await session.fetch("limits/set", kind, name, n, per, burst, by)
        queues = await _let_go(session, [(kind, name)])
    return queues | await unhold(db)


async def reset(db: Database, kind: LimitKind, name: str) -> set[str]:
    """Let a limit be as declared, once admissions under way have ended, and let go what it lets go; returns the queues
    to wake."""
    async with db.transaction() as session:
        await _lock_name(session, kind, name)
        await session.fetch("limits/reset", kind, name)
        queues = await _let_go(session, [(kind, name)])
    return queues | await unhold(db)


async def _lock_name(session: Session, kind: LimitKind, name: str) -> None:
    """Wait for admissions under way, and let none begin before the change is committed."""
    await session.fetch("limits/lock_name", "limit" if kind == "concurrency" else "rate", name)
