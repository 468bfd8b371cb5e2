"""Calls of `sql/signals`: the inbox."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell._core.codec import decode_value
from stepwell._core.records import Signal
from stepwell._store.database import Queryable


class NewSignal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A signal that passed the door: to an id, or to a key of a tenant; its payload is JSON text."""

    id: int | None
    tenant: str
    key: str | None
    name: str
    payload: str
    dedup_key: str | None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """What became of a signal: the target it reached, and the queue to announce if that may run."""

    target: int | None
    queue: str | None
    is_orphaned: bool  # its key had a holder that ended while we waited: there may be a successor


async def deliver(db: Queryable, signals: Sequence[NewSignal]) -> list[Delivery]:
    rows = await db.fetch(
        "signals/deliver",
        [s.id for s in signals],
        [s.tenant for s in signals],
        [s.key for s in signals],
        [s.name for s in signals],
        [s.payload for s in signals],
        [s.dedup_key for s in signals],
    )
    return [
        Delivery(target, queue, target is None and resolved is not None and signals[position].key is not None)
        for position, target, resolved, queue in rows
    ]


async def load(db: Queryable, ids: Sequence[int]) -> dict[int, tuple[Signal, ...]]:
    """Inboxes by instance, in arrival order."""
    inboxes: dict[int, list[Signal]] = {}
    for instance_id, id_, name, payload, dedup_key, sent_at in await db.fetch("signals/load", ids):
        value = None if payload is None else decode_value(payload)
        inboxes.setdefault(instance_id, []).append(Signal(id_, name, value, dedup_key, sent_at))
    return {instance_id: tuple(inbox) for instance_id, inbox in inboxes.items()}


async def recheck(db: Queryable, parked: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[int, str]]:
    """Wake parked rows that have a signal they were not handed; returns id and queue of those."""
    handed = ["{" + ",".join(map(str, ids)) + "}" for _, ids in parked]
    rows = await db.fetch("signals/recheck", [id_ for id_, _ in parked], handed)
    return [(id_, queue) for id_, queue in rows]


async def consume(db: Queryable, signal_ids: Sequence[int]) -> None:
    await db.fetch("signals/consume", signal_ids)


async def drop(db: Queryable, instance_ids: Sequence[int], *, alone: bool = False) -> None:
    """Drop inboxes of what is done; alone, without a wait for the disk."""
    await db.fetch("signals/drop", instance_ids, alone)
