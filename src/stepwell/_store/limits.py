"""Calls of `sql/limits`: admits rows under limits, puts others on hold, and changes limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias, assert_never

from stepwell._core.instance import AtStep, Claim
from stepwell._core.limits.admission import Admission, Bucket, Candidate, Gate
from stepwell._core.limits.admission import admit as decide
from stepwell._core.limits.requirement import LimitRequirement
from stepwell._store.connection.pool import Database, Queryable, Row, Session
from stepwell._store.registrations.queues import claims_ended
from stepwell.limits import Limit, LimitKind, RateLimit, kind_of

PAGE = 5_000  # buckets, wait queues, or rows on hold, per statement
FULL_LOOK = 1_000  # rows of one wait queue that one sweep admits
FOUND_AT_ONCE = 10_000  # rows of all wait queues that one sweep admits
QUEUES_AT_ONCE = 50  # wait queues per transaction: all limits together share 1,024 lock rows


HeldRow: TypeAlias = tuple[str, int]  # hold and id of a row
FIRST: Final[HeldRow] = "", 0


class SlotSource(Enum):
    """Why slots may be free."""

    MADE = "made"  # the caller released them: admit one row per occurrence of a limit
    ALL = "all"  # the limit has changed: admit as many rows as there are free slots
    FOUND = "found"  # a periodic sweep found them: some rows may be admitted already


@dataclass(frozen=True, slots=True)
class Held(AtStep):
    """A row that was put on hold for a limit."""

    priority: int

    @classmethod
    def of(cls, row: Row) -> Held:
        return cls(*[row[field.name] for field in fields(cls)])


@dataclass(frozen=True, slots=True)
class Admitted:
    """The result of an admission: which rows are claimed, and which are on hold."""

    claims: list[Claim]
    held: list[Held]
    left: int  # rows that are neither claimed nor held: to be retried
    queues: list[str]  # of other rows that became claimable
    wait: float | None  # seconds until the first wait queue has a token


async def admit(db: Database, worker_id: int, queue: str, ids: Sequence[int]) -> Admitted:
    """Claim the rows that their limits admit, and put the others on hold."""
    async with db.transaction() as session:
        locked = {(kind, key) for kind, key in await session.fetch("limits/lock_rows", ids, queue)}
        if not locked:
            return Admitted([], [], len(ids), [], None)
        candidates, gates, buckets = _seen(await session.fetch("limits/read_candidates", ids, queue))
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
        needs=LimitRequirement(row["concurrency_limit"], row["own_limit"], row["rate_limit"], row["weight"]),
        unit_id=row["await_unit_id"],
    )  # fmt: skip


async def free(db: Queryable, keys: Iterable[str], *, room: SlotSource = SlotSource.MADE) -> list[str]:
    """Admit the first rows that wait for each limit: one per occurrence, or as many as there are slots.

    Locks the limits first. Returns the queues of the admitted rows.
    """
    counts = Counter(keys)
    if not counts:
        return []
    await db.fetch("limits/lock", list(counts))
    most = [_most(room, number, len(counts)) for number in counts.values()]
    rows = await db.fetch("limits/admit_waiting", list(counts), most, room is SlotSource.FOUND)
    return [row["queue"] for row in rows]


async def admit_waiting(db: Queryable, keys: Iterable[str]) -> list[str]:
    """Admit the first rows that wait for each limit, one per occurrence; returns their queues. One statement, for
    slots that a fast commit has released."""
    counts = Counter(keys)
    rows = await db.fetch("limits/admit_waiting_fast", list(counts), list(counts.values()))
    return [row["queue"] for row in rows]


def _most(room: SlotSource, named: int, queues: int) -> int | None:
    match room:
        case SlotSource.MADE:
            return named
        case SlotSource.ALL:
            return None
        case SlotSource.FOUND:
            return max(min(FULL_LOOK, FOUND_AT_ONCE // queues), 1)
        case _:
            assert_never(room)


def named(rows: Iterable[Row]) -> list[str]:
    """The concurrency limits of rows that took no slot, or released one."""
    return [row["concurrency_limit"] for row in rows if row["concurrency_limit"] is not None]


async def admit_due(db: Database, keys: Sequence[str], *, wake: bool = False) -> tuple[list[str], float | None]:
    """Admit rows that have tokens now; returns their queues, and the seconds until the next token. With `wake`, check
    wait queues that are not due."""
    async with db.transaction() as session:
        await session.fetch("limits/lock_rates", keys)
        if wake:
            await session.fetch("limits/wake_rates", keys)
        [(queues, wait)] = await session.fetch("limits/admit_due", keys)
    return list(queues), wait


async def declare(db: Database, declared: Sequence[Limit]) -> set[str]:
    """Write the limits that the code declares, and admit rows under changed ones; returns the queues to wake."""
    if not declared:
        return await admit_held(db)
    async with db.transaction(is_long=True) as session:
        changed = await session.fetch("limits/declare", *_columns(declared))
    queues = await _admit_next(db, [(row["kind"], row["name"]) for row in changed])
    return queues | await admit_held(db)


async def declare_missing(db: Queryable, declared: Sequence[Limit]) -> None:
    """Write limits that the database does not have yet."""
    if declared:
        await db.fetch("limits/declare_missing", *_columns(declared))


async def admit_held(db: Queryable) -> set[str]:
    """Admit rows on hold for a limit that was missing or too small; returns their queues."""
    queues: set[str] = set()
    after: HeldRow | None = FIRST
    while after is not None:
        admitted, after = await unhold_page(db, after)
        queues.update(admitted)
    return queues


async def unhold_page(db: Queryable, after: HeldRow) -> tuple[list[str], HeldRow | None]:
    """Admit those rows of a page that their limits now fit; returns their queues, and where the next page starts."""
    [(queues, hold, id_)] = await db.fetch("limits/admit_held", *after, PAGE)
    return list(queues), None if hold is None else (hold, id_)


async def _admit_next(db: Database, changed: Sequence[tuple[str, str]]) -> set[str]:
    """Admit rows that wait for slots of changed limits; the timers check those that wait for tokens.

    Only a few wait queues per transaction: limits share lock rows, so that others wait for the whole transaction. If
    this call is interrupted, the reaper finds the remaining wait queues.
    """
    queues: set[str] = set()
    for kind, name in changed:
        if kind == "rate":
            await _hasten(db, name)
            continue
        async for keys in _wait_queues(db, name):
            for first in range(0, len(keys), QUEUES_AT_ONCE):
                async with db.transaction(is_long=True) as session:
                    queues.update(await free(session, keys[first : first + QUEUES_AT_ONCE], room=SlotSource.ALL))
    return queues


async def _hasten(db: Database, name: str) -> None:
    """Let the timers check the wait queues of a rate limit, page by page."""
    after: str | None = None
    while True:
        async with db.transaction(is_long=True) as session:
            rows = await session.fetch("limits/recheck_rates", name, after, PAGE)
        if not rows:
            return
        after = rows[0]["last"]


async def _wait_queues(db: Database, name: str) -> AsyncIterator[list[str]]:
    """The wait queues of a concurrency limit, page by page."""
    after: str | None = None
    while True:
        async with db.transaction(is_long=True) as session:
            keys = [row["key"] for row in await session.fetch("limits/find_waiting", name, after, PAGE)]
        yield keys
        if len(keys) < PAGE:
            return
        after = keys[-1]


def _columns(declared: Sequence[Limit]) -> tuple[list[object], ...]:
    return (
        [kind_of(limit) for limit in declared],
        [limit.name for limit in declared],
        [limit.n for limit in declared],
        [limit.per if isinstance(limit, RateLimit) else None for limit in declared],
        [limit.burst if isinstance(limit, RateLimit) else None for limit in declared],
    )


async def prune(db: Queryable) -> None:
    """Delete buckets that are full again, page by page."""
    after: str | None = ""
    while after is not None:
        rows = await db.fetch("limits/prune", after, PAGE)
        after = rows[0]["last"] if rows else None


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit as operators see it: its values, its declared values, and its running and waiting rows."""

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
    executing: int | None  # not counted for a rate limit
    waiting: int

    @property
    def is_changed(self) -> bool:
        """Whether it differs from what the code declares."""
        return (self.n, self.per, self.burst) != (self.declared_n, self.declared_per, self.declared_burst)


async def list_all(db: Database) -> list[LimitRow]:
    async with db.transaction(is_long=True) as session:
        return [LimitRow(*row) for row in await session.fetch("limits/list")]


async def change(
    db: Database, kind: LimitKind, name: str, n: int | None, per: timedelta | None, burst: int | None, by: str | None
) -> set[str]:
    """Change a limit, wait until admissions under the old one have ended, and admit rows under the new one; returns the
    queues to wake."""
    await db.fetch("limits/set", kind, name, n, per, burst, by)
    return await _after_change(db, kind, name)


async def reset(db: Database, kind: LimitKind, name: str) -> set[str]:
    """Reset a limit to its declared values, wait until admissions under the old ones have ended, and admit rows under
    the new ones; returns the queues to wake."""
    await db.fetch("limits/reset", kind, name)
    return await _after_change(db, kind, name)


async def _after_change(db: Database, kind: LimitKind, name: str) -> set[str]:
    """Wait until admissions under the old limit have ended, so that this sees the rows that they put on hold."""
    await claims_ended(db)
    return await _admit_next(db, [(kind, name)]) | await admit_held(db)
