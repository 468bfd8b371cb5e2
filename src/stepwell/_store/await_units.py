"""Calls of `sql/await_units`: opens, fills, counts, settles and repairs the interactions of one ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from stepwell._core.await_unit import Common, NewInteraction
from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.interaction import InteractionStatus
from stepwell._core.serialization.reply_type import ReplyType
from stepwell._store import children, concurrency_keys, limits
from stepwell._store.connection.pool import Database, Queryable, Session

PAGE = 1_000  # interactions of a large unit that one statement closes, deletes or reopens
_ENCODER = msgspec.json.Encoder()


class Resolved(msgspec.Struct, frozen=True):
    """Ended interactions of one unit: how many, how many of them were sent, and whether that ends the unit."""

    unit_id: int
    number: int
    returned: int
    ended: Literal["timed_out", "failed"] | None = None
    is_filled: bool = False  # its last item was appended
    continues: int = 0  # continuations that start
    continued: int = 0  # continuations that have ended


class Dropped(msgspec.Struct, frozen=True):
    """The concurrency keys and limits that cancelled items held or waited for, with one entry per item."""

    keys: Sequence[str] = ()
    limits: Sequence[str] = ()

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped([*self.keys, *other.keys], [*self.limits, *other.limits])


class Settled(msgspec.Struct, frozen=True):
    """The result of a settlement: queues with claimable rows, transports with interactions to send, seconds until the
    next deadline, and what cancelled items held (`free` releases it, last in the transaction)."""

    queues: Sequence[str] = ()
    transports: Sequence[str] = ()
    next_deadline: float | None = None
    dropped: Dropped = Dropped()


class StoredReply(msgspec.Struct, frozen=True, array_like=True):
    """One interaction of a loaded unit."""

    id: str
    item: int
    status: InteractionStatus
    reply: str | None
    actor: str | None
    finished_at: datetime | None
    error: str | None


class StoredAwaitUnit(msgspec.Struct, frozen=True, array_like=True):
    """A unit with its replies, as the step after it receives it."""

    id: int
    status: str
    is_one: bool
    on_timeout: str
    step: str  # the step that asked
    reference: str  # the type of its replies
    replies: list[StoredReply]
    is_streamed: bool = False  # its replies started continuations


async def open_(db: Queryable, asked: Sequence[tuple[Commit, int]]) -> None:
    """Open the units, with the given ids, of asks that this transaction has committed."""
    opened = [commit.park.asks for commit, _ in asked if commit.park.asks is not None]
    types = {unit.common.type.id: unit.common.type for unit in opened}
    units = [_one(commit, unit_id) for commit, unit_id in asked]
    await db.fetch("await_units/open", _ENCODER.encode(units).decode(), *_columns(types.values()))


class Filling(msgspec.Struct, frozen=True):
    """A unit that an executing instance fills."""

    unit_id: int
    opened: int  # interactions so far


async def hold(db: Session, claim: Claim) -> Filling | None:
    """Lock an executing instance, to append to the unit that it fills; None if the claim no longer holds."""
    rows = await db.fetch("await_units/hold", claim.id, claim.worker_id, claim.fence)
    return Filling(*rows[0]) if rows else None


async def item_step(db: Queryable, claim: Claim) -> tuple[str, str] | None:
    """For the unit that an executing instance fills: the first step of its continuations, and the step that asks; None
    if it fills no such unit."""
    rows = await db.fetch("await_units/item_step", claim.id)
    return (rows[0]["item_step"], rows[0]["step"]) if rows else None


class Appended(msgspec.Struct, frozen=True):
    """The result of a chunk: how many interactions may be sent; or how the unit ended before it was full, with the
    overdue interaction if one ended it; or which item differs from the stored one."""

    out: int
    ended: str | None
    timed_out: str | None
    number: int  # of new interactions
    differs: int | None  # the first item that differs
    asked: str | None  # its stored request, as JSON
    given: str | None  # its new request; None: the source ended before this item


async def append(
    db: Session, claim: Claim, unit_id: int, common: Common, first: int, interactions: Sequence[NewInteraction]
) -> Appended:
    """Append interactions to a unit, for the items from number `first` on; stored ones are compared. Without
    interactions: the source ended before that item."""
    head = _common(claim.id, unit_id, common) | {
        "first": first,
        "window": None if common.each is None else common.each.window,
        "item_step": None if common.each is None else common.each.step,
        "idempotency": common.requests.idempotency or None,
        "type_name": common.type.name,
        "reference": msgspec.Raw(common.type.reference.encode()),
        "schema": None if common.type.schema is None else msgspec.Raw(common.type.schema.encode()),
    }
    rows = await db.fetch(
        "await_units/append", _ENCODER.encode(head).decode(), [q.id for q in interactions] or [None],
        [q.request for q in interactions] or [None], [q.fields for q in interactions] or [None],
    )  # fmt: skip
    return Appended(*rows[0])


async def settle(db: Queryable, resolved: Sequence[Resolved]) -> Settled:
    """Count ended interactions and continuations at their units, and resume instances of complete units."""
    if not resolved:
        return Settled()
    [(queues, transports, next_deadline, dropped)] = await db.fetch(
        "await_units/settle",
        [r.unit_id for r in resolved],
        [r.number for r in resolved],
        [r.returned for r in resolved],
        [r.ended for r in resolved],
        [r.is_filled for r in resolved],
        [r.continues for r in resolved],
        [r.continued for r in resolved],
    )
    return Settled(queues, transports, next_deadline, await _drop_items(db, dropped))


async def settle_and_free(session: Session, resolved: Sequence[Resolved]) -> Settled:
    """Settle, and release what cancelled items held. Call it last in the transaction."""
    settled = await settle(session, resolved)
    if settled.dropped == Dropped():
        return settled
    return Settled(
        [*settled.queues, *await free(session, settled.dropped)], settled.transports, settled.next_deadline
    )


async def end_items(db: Queryable, ended: Iterable[tuple[int | None, bool]]) -> Settled:
    """Count ended continuations, each given as its unit and whether it is done; entries without a unit are skipped."""
    numbers, failed = Counter[int](), set[int]()
    for unit_id, is_done in ended:
        if unit_id is not None:
            numbers[unit_id] += 1
            if not is_done:
                failed.add(unit_id)
    return await settle(
        db,
        [Resolved(u, 0, 0, "failed" if u in failed else None, continued=n) for u, n in sorted(numbers.items())],
    )


async def free_apart(db: Database, dropped: Dropped) -> list[str]:
    """As `free`, in a transaction of its own."""
    if dropped == Dropped():
        return []
    async with db.transaction() as session:
        return await free(session, dropped)


async def outputs(db: Queryable, instance_id: int, unit_id: int, after: int, limit: int) -> list[tuple[int, str]]:
    """The results of continuations, in item order."""
    rows = await db.fetch("await_units/outputs", instance_id, unit_id, after, limit)
    return [(row["item"], row["result"]) for row in rows]


async def close(db: Queryable, instance_ids: Sequence[int]) -> Dropped:
    """Close the open units of these instances, and cancel their continuations."""
    if not instance_ids:
        return Dropped()
    return await _drop_items(db, [row["id"] for row in await db.fetch("await_units/close", instance_ids)])


async def _drop_items(db: Queryable, unit_ids: Sequence[int]) -> Dropped:
    """Cancel the continuations of units that have ended."""
    if not unit_ids:
        return Dropped()
    rows = await db.fetch("await_units/drop_items", unit_ids)
    return Dropped([key for row in rows if (key := row["concurrency_key"]) is not None], limits.named(rows))


async def clean_up(db: Database) -> list[str] | None:
    """Close, or delete, one page of a large ended unit; returns queues to wake, or None if no such unit is left."""
    rows = await db.fetch("await_units/clean_up", PAGE)
    return await free_apart(db, Dropped(*rows[0])) if rows else None


async def free(db: Queryable, dropped: Dropped) -> list[str]:
    """Admit the next rows to the keys and limits of cancelled items; returns their queues. Call it last in the
    transaction: claims that need these locks must not wait for other locks of this transaction."""
    queues: list[str] = []
    if dropped.keys:
        await concurrency_keys.lock(db, dropped.keys)
        queues += await concurrency_keys.free(db, dropped.keys)
    return queues + await limits.free(db, dropped.limits)


async def reopen(db: Queryable, instance_id: int) -> Settled | None:
    """Reopen the interactions of a retried instance that have no reply, and restart failed continuations, page by page;
    None if the instance has no unit."""
    await db.fetch("await_units/forget_cleanup", instance_id)
    rows = await db.fetch("await_units/hold_ended", instance_id)
    if not rows:
        return None
    [(unit_id, opened, window)] = rows
    replied = asked = continuing = 0
    transports, queues = set[str](), set[str]()
    for first in range(0, opened, PAGE):
        room = None if window is None else max(window - asked, 0)
        [page] = await db.fetch("await_units/reopen", unit_id, first, first + PAGE, room)
        replied += page["answered"]
        asked += page["asked"]
        continuing += page["continuing"]
        transports.update(page["transports"])
        queues.update(page["queues"])
    await db.fetch("await_units/resume", unit_id, replied, continuing)
    settled = await settle(db, [Resolved(unit_id, 0, 0)])  # it may be complete
    return Settled([*queues, *settled.queues], [*transports])


async def recount_item(db: Queryable, instance_id: int) -> tuple[int, bool] | None:
    """Count a continuation as running again, for a retry or restart; returns the instance that asked, and whether it
    waits for the unit, or None if this is not a continuation."""
    rows = await db.fetch("await_units/recount_item", instance_id)
    return (rows[0]["parent_id"], rows[0]["waits"]) if rows else None


async def load(db: Queryable, ids: Sequence[int]) -> dict[int, StoredAwaitUnit]:
    """Units by their ids, with their interactions in item order."""
    units: dict[int, StoredAwaitUnit] = {}
    for (
        unit_id, status, is_one, on_timeout, step, reference, id_, item, reply_status, reply, actor, finished_at, error,
        is_streamed,
    ) in await db.fetch("await_units/load", ids):  # fmt: skip
        unit = units.get(unit_id)
        if unit is None:
            unit = units[unit_id] = StoredAwaitUnit(unit_id, status, is_one, on_timeout, step, reference, [],
                                                    is_streamed)
        if id_ is not None:
            unit.replies.append(
                StoredReply(id_, item, InteractionStatus(reply_status), reply, actor, finished_at, error)
            )
    return units


def _one(commit: Commit, unit_id: int) -> dict[str, Any]:
    assert commit.park.asks is not None  # noqa: S101 - the caller has selected such commits
    asked = commit.park.asks.interaction
    assert asked is not None  # noqa: S101 - units of Ask.each are appended to, not opened
    return _common(commit.claim.id, unit_id, commit.park.asks.common) | {
        "id": asked.id, "request": msgspec.Raw(asked.request.encode()), "fields": asked.fields,
        "max_items": commit.park.asks.common.requests.max_items,
    }  # fmt: skip


def _common(instance_id: int, unit_id: int, common: Common) -> dict[str, Any]:
    return {
        "unit_id": unit_id,
        "instance_id": instance_id,
        "step": common.step,
        "transport": common.transport,
        "sends": common.sends,
        "reply_type": common.type.id,
        "timeout": common.timeout,
        "on_timeout": common.on_timeout,
        "requires_token": common.requires_token,
        "assignee": common.assignee,
        "group_name": common.group,
        "is_shared": common.is_shared,
    }


def _columns(types: Iterable[ReplyType]) -> tuple[list[Any], ...]:
    listed = list(types)
    return (
        [t.id for t in listed], [t.name for t in listed], [t.reference for t in listed], [t.schema for t in listed],
    )  # fmt: skip


class ReconcilePlace(msgspec.Struct, frozen=True):
    """The position of a round: the last parked instance, the last instance with open units, and the last parent; None
    at the end."""

    parked: int | None = 0
    open: int | None = 0
    parent: int | None = 0

    @property
    def is_end(self) -> bool:
        return self.parked is None and self.open is None and self.parent is None


class Repaired(msgspec.Struct, frozen=True):
    """What a page of a round has found and repaired."""

    released: Sequence[int]  # instances that waited for an ended unit
    closed: Sequence[int]  # units that no instance waited for
    recounted: Sequence[int]  # units with wrong counts
    started: Sequence[int]  # units of replies without a continuation, one entry per reply
    joined: Sequence[int]  # parents that waited although all their children had ended
    settled: Settled
    after: ReconcilePlace  # where the round continues


async def reconcile(db: Database, after: ReconcilePlace) -> Repaired:
    """Check a page of parked instances, open units and parents, and repair inconsistent ones."""
    parked, released, queues = await _release_stuck(db, after.parked)
    found = await db.fetch("await_units/find_orphaned", after.open) if after.open is not None else []
    wrong = [(instance_id, unit_id) for instance_id, unit_id in found if unit_id is not None]
    open_ = max([instance_id for instance_id, unit_id in found if unit_id is None], default=None)
    closed, recounted, started, settled = await _repair(db, wrong) if wrong else ([], [], [], Settled())
    parent, joined = await _join_childless(db, after.parent)
    settled = msgspec.structs.replace(settled, queues=[*queues, *(queue for _, queue in joined), *settled.queues])
    place = ReconcilePlace(parked, open_, parent)
    return Repaired(released, closed, recounted, started, [id_ for id_, _ in joined], settled, place)


async def _release_stuck(db: Database, after: int | None) -> tuple[int | None, Sequence[int], Sequence[str]]:
    if after is None:
        return None, (), ()
    [(last, released, queues)] = await db.fetch("await_units/release_stuck", after)
    return last, released, queues


async def _join_childless(db: Database, after: int | None) -> tuple[int | None, Sequence[tuple[int, str]]]:
    if after is None:
        return None, ()
    last, found = await children.find_childless(db, after)
    return last, await children.recount(db, found) if found else ()


async def _repair(db: Database, wrong: list[tuple[int, int]]) -> tuple[list[int], list[int], list[int], Settled]:
    """Close units that no instance waits for, start missing continuations, and recount; checks everything again under
    the locks."""
    async with db.transaction() as session:
        locked = await children.lock_parents(session, sorted({instance_id for instance_id, _ in wrong}))
        ids = [unit_id for instance_id, unit_id in wrong if instance_id in locked]
        orphans = await session.fetch("await_units/close_orphaned", ids)
        closed = [row["id"] for row in orphans]
        dropped = await _drop_items(session, [row["id"] for row in orphans if row["is_small"]])
        missing = [(unit_id, queue) for unit_id, queue in await session.fetch("await_units/start_missing", ids)]
        started = [unit_id for unit_id, _ in missing]
        rows = await session.fetch("await_units/recount", ids, started)
        settled = await settle(
            session,
            [Resolved(unit_id, 0, 0, "failed", continued=1) if has_failed else Resolved(unit_id, 0, 0)
             for unit_id, has_failed in rows],
        )  # fmt: skip
        recounted = [row["id"] for row in rows if row["id"] not in started]
        queues = {*settled.queues, *(queue for _, queue in missing), *await free(session, dropped + settled.dropped)}
        return closed, recounted, started, msgspec.structs.replace(settled, queues=[*queues])
