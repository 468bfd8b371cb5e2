"""Calls of `sql/instances` outside the hot path: release, verify, reap, wake, put on hold and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from stepwell._core.instance import AtStep, Failure, Instance
from stepwell._core.serialization.codec import decode_value
from stepwell._core.status import Hold, Status
from stepwell._store import await_units, children, concurrency_keys, limits
from stepwell._store.connection.pool import PLAN_ANEW, Database, Queryable, Row, Session
from stepwell._store.connection.sql_files import statement
from stepwell.errors import InvalidPayload


@dataclass(frozen=True, slots=True)
class Reaped(AtStep):
    """A row taken from a dead worker."""

    status: Status
    queue: str
    watched: bool
    worker_id: int  # of the dead worker
    failure: str | None  # the reason if it failed


class Trace(msgspec.Struct, frozen=True):
    """The current row of a claim, as far as it tells about the claim."""

    fence: int
    worker_id: int | None
    status: Status
    committed_fence: int | None  # of the last claim that committed
    dropped_fence: int | None  # of the last claim that ended without a commit


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of one tick of the timers: what came due, and the state of the queues."""

    freed: int
    freed_queues: list[str]
    ready: list[str]
    flowing: list[str]  # rate limits with a wait queue that is due
    paused: list[str]
    fair: list[str]
    misplaced: list[str]  # queues that have rows with a wrong share
    has_late: bool  # whether an interaction is past its deadline
    to_send: list[str]  # transports with interactions to send
    next_due: float | None  # seconds


async def find_key_holders(db: Session, keys_: Sequence[tuple[str, str]]) -> dict[int, int]:
    """The ids of instances that occupy keys, given as (tenant, key), by position; free keys are missing."""
    await db.run(PLAN_ANEW)
    rows = await db.fetch("instances/find_key_holders", [tenant for tenant, _ in keys_], [key for _, key in keys_])
    return {row["position"]: row["id"] for row in rows}


async def verify(db: Queryable, ids: Sequence[int]) -> dict[int, Trace]:
    rows = await db.fetch("instances/verify", ids)
    return {id_: Trace(fence, worker, Status(status), *marks) for id_, fence, worker, status, *marks in rows}


async def wake_due(db: Queryable, queues: Sequence[str], transports: Sequence[str] = ()) -> Tick:
    [row] = await db.fetch("instances/wake_due", queues, transports)
    return Tick(**row)


async def release(
    db: Database, worker_id: int, claims: Sequence[tuple[int, int, str | None]]
) -> tuple[set[int], list[str]]:
    """Release claims, each given as id, fence and concurrency key; returns the released ids, and the queues to wake.
    Missing claims no longer hold, or their rows are locked."""
    ids, fences = [id_ for id_, _, _ in claims], [fence for _, fence, _ in claims]
    held = [key for _, _, key in claims if key is not None]
    async with db.transaction() as session:
        if held:
            await concurrency_keys.lock(session, held)
        rows = await session.fetch("instances/release", worker_id, ids, fences)
        freed = await concurrency_keys.free(session, held) if held else []
        freed += await limits.free(session, limits.named(rows))
    return {row["id"] for row in rows}, [row["queue"] for row in rows] + freed


Carried = tuple[int, str | None, int | None]
"""An executing row of a dead worker: its id, its concurrency key, its parent."""


async def find_lost(db: Queryable, worker_id: int, lease: timedelta) -> list[Carried]:
    """Executing rows of workers without a live lease, if this worker may reap now."""
    return [(id_, key, parent) for id_, key, parent in await db.fetch("instances/find_lost", worker_id, lease)]


async def find_executing(db: Queryable, worker_ids: Sequence[int]) -> list[Carried]:
    """Executing rows of the given workers."""
    return [(id_, key, parent) for id_, key, parent in await db.fetch("instances/find_executing", worker_ids)]


async def reap(
    db: Database, lost: Sequence[Carried], max_crashes: int, authored: str = "{}"
) -> tuple[list[Reaped], list[str]]:
    """Take rows from workers without a live lease; returns them, and the queues of other rows that became claimable.
    `authored`: the names that authors gave to steps, as JSON."""
    held = [key for _, key, _ in lost if key is not None]
    parents = [parent for _, _, parent in lost if parent is not None]
    async with db.transaction() as session:
        if held:
            await concurrency_keys.lock(session, held)
        locked = await children.lock_parents(session, parents) if parents else set()
        ids = [id_ for id_, _, parent in lost if parent is None or parent in locked]
        rows = await session.fetch("instances/reap", ids, max_crashes, authored)
        ends = [(row["joins"], row["parent_round"]) for row in rows if row["joins"] is not None]
        freed = await children.join(session, ends) if ends else []
        settled = await await_units.end_items(session, [(row["continues"], False) for row in rows])
        failed = [row["id"] for row in rows if row["status"] == Status.FAILED]
        dropped = settled.dropped + await await_units.close(session, failed)
        freed += settled.queues
        freed += await concurrency_keys.free(session, held) if held else []
        freed += await limits.free(session, limits.named(rows))
    # In a separate transaction: locks are taken in the order of their numbers, and some were taken above.
    freed += await await_units.free_apart(db, dropped)
    return [_reaped(row) for row in rows], freed


def _reaped(row: Row) -> Reaped:
    return Reaped(
        id=row["id"], machine=row["machine"], version=row["version"], step=row["step"], attempt=row["attempt"],
        tenant=row["tenant"], key=row["key"], parent_id=row["parent_id"], status=Status(row["status"]),
        queue=row["queue"], watched=row["watched"], worker_id=row["worker_id"], failure=row["failure"],
    )  # fmt: skip


async def hold_unknown_versions(db: Queryable, ids: Sequence[int]) -> dict[int, str | None]:
    """Put rows on hold that no live worker can run; returns them with their concurrency limits."""
    return {row["id"]: row["concurrency_limit"] for row in await db.fetch("instances/hold_unknown_versions", ids)}


FULL_UNHOLD = 1_000


async def admit_versions(
    db: Queryable, labels: Sequence[str] = (), upcasting: Sequence[str] = (), *, also_unfit: bool = False
) -> set[str]:
    """Admit rows that a live worker, one of the given versions or an upcast can run; returns the queues to wake."""
    queues: set[str] = set()
    while True:
        rows = await db.fetch("instances/admit_versions", labels, also_unfit, upcasting)
        queues.update(row["queue"] for row in rows)
        if len(rows) < FULL_UNHOLD:
            return queues


async def read(db: Queryable, ids: Sequence[int]) -> list[Instance]:
    return [read_row(row) for row in await db.fetch("instances/read", ids)]


def read_over(
    send: Callable[[str, list[int]], Sequence[Mapping[str, Any]]], ids: list[int], schema: str
) -> list[Instance]:
    """As `read`, on a caller's connection: `send` runs a statement with the placeholder %s for the ids."""
    return [read_row(row) for row in send(statement("instances/read", schema).replace("$1", "%s"), ids)]


async def find_key(db: Queryable, tenant: str, key: str) -> int | None:
    rows = await db.fetch("instances/find_key", tenant, key)
    return rows[0]["id"] if rows else None


async def watch(db: Queryable, id_: int) -> tuple[Status, str | None] | None:
    """Mark a row as watched; returns its status, and its queue if a claim may have skipped the locked row."""
    rows = await db.fetch("instances/watch", id_)
    return (Status(rows[0]["status"]), rows[0]["queue"]) if rows else None


def _shown(text: str) -> Any:
    """Decode a stored value; one that other software wrote and that cannot be decoded is returned as text."""
    try:
        return decode_value(text)
    except InvalidPayload:
        return text


def read_row(row: Row | Mapping[str, Any]) -> Instance:
    """A row of read.sql or list.sql."""
    fields: dict[str, Any] = dict(row)
    fields.pop("await_unit_id", None)
    error = fields["error"]
    fields |= {
        "status": Status(fields["status"]),
        "hold": None if fields["hold"] is None else Hold(fields["hold"]),
        "awaits": tuple(fields["awaits"] or ()),
        "state": _shown(fields["state"]),
        "result": None if fields["result"] is None else _shown(fields["result"]),
        "error": None if error is None else Failure(**decode_value(error)),
        "operated": None if fields["operated"] is None else decode_value(fields["operated"]),
    }
    return Instance(**fields)
