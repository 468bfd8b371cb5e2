"""Calls of `sql/interactions`: find, send, expire and read; `operations/complete.py` judges completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from stepwell._core.interaction import Dispatch, Interaction, InteractionStatus
from stepwell._core.serialization.codec import decode_value
from stepwell._store import await_units, children
from stepwell._store.await_units import Resolved, Settled
from stepwell._store.connection.pool import Database, Queryable

READ_AT_ONCE = 10  # interactions per statement: each may be as large as max_payload
MOST_READ = 4 * 1024 * 1024  # characters after which a page reads no further statement
LARGE = 16 * 1024
FULL_LOOK = 500  # overdue interactions of one page
BEFORE_ALL = (datetime.min.replace(tzinfo=UTC), "00000000-0000-0000-0000-000000000000")


class Found(msgspec.Struct, frozen=True):
    """An interaction that a completion names."""

    id: str
    unit_id: int
    instance_id: int
    machine: str
    version: int
    step: str
    reference: str
    request: str | None = None  # request and time are set only for a projector
    asked_at: datetime | None = None


class Sent(msgspec.Struct, frozen=True):
    """The result of one sending: finished, or to be retried after `delay`."""

    id: str
    attempt: int
    delay: timedelta | None = None
    metadata: str | None = None
    error: str | None = None


class Outgoing(msgspec.Struct, frozen=True):
    """An interaction to be sent, and whether it needs a token."""

    dispatch: Dispatch
    requires_token: bool


async def find(db: Queryable, named: Sequence[tuple[str | None, str | None, str]]) -> dict[int, Found]:
    """Find interactions, each by (id or None, correlation or None, tenant); returns the existing ones by position."""
    rows = await db.fetch(
        "interactions/find", [id_ for id_, _, _ in named], [correlation for _, correlation, _ in named],
        [tenant for _, _, tenant in named],
    )  # fmt: skip
    return {position: Found(*rest) for position, *rest in rows}


async def expire(db: Database) -> tuple[int, int, Settled]:
    """End overdue interactions; returns how many there were, how many of them are locked, and what became claimable.
    Locked ones are skipped: they delay no others."""
    number, held, after = 0, 0, BEFORE_ALL
    while True:
        late = await db.fetch("interactions/find_overdue", *after)
        if not late:
            return number, held, Settled()
        ended, settled = await _expire(db, [(row["id"], row["instance_id"]) for row in late])
        number, held = number + len(late), held + len(late) - ended
        after = late[-1]["deadline"], late[-1]["id"]
        if ended or len(late) < FULL_LOOK:
            return number, held, settled


async def _expire(db: Database, late: list[tuple[str, int]]) -> tuple[int, Settled]:
    """End the interactions of unlocked instances; returns how many."""
    async with db.transaction() as session:
        locked = await children.lock_parents(session, sorted({instance for _, instance in late}))
        ids = [id_ for id_, instance in late if instance in locked]
        rows = await session.fetch("interactions/expire", ids) if ids else []
        resolved = [Resolved(unit, number, number, "timed_out") for unit, number in rows]
        return len(ids), await await_units.settle_and_free(session, resolved)


async def claim(
    db: Queryable, worker_id: int, transport: str, limit: int, *, has_keys: bool = True
) -> list[Outgoing]:
    """Claim interactions to be sent; without token keys, only those that need no token."""
    rows = await db.fetch("interactions/claim", worker_id, transport, limit, has_keys)
    return [_outgoing(dict(row)) for row in rows]


async def has_guarded(db: Queryable, transport: str) -> bool:
    """Whether an interaction that needs a token waits to be sent."""
    [row] = await db.fetch("interactions/has_guarded", transport)
    return bool(row["is_there"])


async def record(db: Queryable, worker_id: int, sent: Sequence[Sent]) -> list[Sent]:
    """Record results of sendings; returns those with a locked interaction, which were not recorded."""
    rows = await db.fetch(
        "interactions/record", worker_id, [s.id for s in sent], [s.attempt for s in sent], [s.delay for s in sent],
        [s.metadata for s in sent], [s.error for s in sent],
    )  # fmt: skip
    noted = {row["id"] for row in rows if row["is_noted"]}
    held = {row["id"] for row in rows} - noted
    return [s for s in sent if s.id in held]


Lost: TypeAlias = tuple[Dispatch, str]
"""An interaction that can never be sent, and why."""


async def fail(db: Database, worker_id: int, lost: Sequence[Lost]) -> tuple[list[Lost], Settled]:
    """End interactions that can never be sent; returns those of locked instances, and what became claimable."""
    async with db.transaction() as session:
        locked = await children.lock_parents(session, sorted({dispatch.instance_id for dispatch, _ in lost}))
        ready = [(dispatch, why) for dispatch, why in lost if dispatch.instance_id in locked]
        rows = await session.fetch(
            "interactions/fail", worker_id, [d.interaction_id for d, _ in ready], [d.attempt for d, _ in ready],
            [why for _, why in ready],
        )  # fmt: skip
        ended = [Resolved(unit, number, number, "failed") for unit, number in rows]
        settled = await await_units.settle_and_free(session, ended)
    return [one for one in lost if one[0].instance_id not in locked], settled


async def add_token_hash(db: Queryable, interaction_id: str, hash_: str) -> None:
    """Store the hash of the token of an interaction."""
    await db.fetch("interactions/add_token_hash", interaction_id, hash_)


async def add_token_hashes(db: Queryable, worker_id: int, token_hashes: Mapping[str, str]) -> set[str]:
    """Store the token hashes of interactions that this worker has claimed; returns the unlocked ones."""
    return {row["id"] for row in await db.fetch("interactions/add_token_hashes", worker_id, [*token_hashes],
                                                [*token_hashes.values()])}


async def release(db: Queryable, worker_id: int, transport: str, kept: Collection[str]) -> int:
    """Release interactions that this worker has claimed, except `kept`; returns how many."""
    return len(await db.fetch("interactions/release", worker_id, transport, list(kept)))


async def release_lost(db: Queryable) -> list[str]:
    """Release interactions of dead workers; returns their transports."""
    return [row["transport"] for row in await db.fetch("interactions/release_lost")]


async def read(db: Queryable, tenant: str, ids: Sequence[str]) -> tuple[list[tuple[Interaction, Found]], int]:
    """Read interactions of a tenant in the order of the ids, both as `Interaction` and as `Found`. Also returns how
    many ids were read: it stops after MOST_READ characters. Other tasks may run after each large interaction."""
    read: dict[str, tuple[Interaction, Found]] = {}
    size, first = 0, 0
    while first < len(ids) and size < MOST_READ:
        for row in await db.fetch("interactions/read", ids[first : first + READ_AT_ONCE], tenant):
            read[row["id"]] = _seen_and_found(dict(row))
            length = len(row["request"]) + len(row["reply"] or "")
            size += length
            if length >= LARGE:
                await asyncio.sleep(0)
        first += READ_AT_ONCE
    return [read[id_] for id_ in ids if id_ in read], min(first, len(ids))


async def pending(
    db: Database, tenant: str, filters: Sequence[object], limit: int, after: str | None
) -> list[tuple[str, str]]:
    """Ids of open interactions, each with the cursor after it. Filters: assignee, group, machine, step, transport,
    overdue; None matches all."""
    async with db.transaction(anew=True) as session:
        rows = await session.fetch("interactions/pending", tenant, *filters, limit, after)
    return [(row["id"], row["cursor"]) for row in rows]


def _decoded(fields: dict[str, Any], names: Sequence[str], read: Callable[[str], Any] = decode_value) -> dict[str, Any]:
    return fields | {name: None if fields[name] is None else read(fields[name]) for name in names}


def _outgoing(row: dict[str, Any]) -> Outgoing:
    requires_token = row.pop("requires_token")
    return Outgoing(Dispatch(**_decoded(row, ("request", "reply_schema"))), requires_token)


def _seen_and_found(row: dict[str, Any]) -> tuple[Interaction, Found]:
    reference = row.pop("reference")
    fields = _decoded(row, ("request", "reply", "reply_schema", "metadata"))
    seen = Interaction(**{**fields, "status": InteractionStatus(fields["status"])})
    return seen, Found(seen.id, seen.unit_id, seen.instance_id, seen.machine, seen.version, seen.step, reference)
