"""Calls of `sql/signals` on the inbox; `operations/deliver.py` delivers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from stepwell._core.instance import Signal
from stepwell._core.serialization.codec import decode_value
from stepwell._store.connection.pool import Queryable, Row

PAGE = 5_000  # signals of one instance per statement
_INBOX = msgspec.json.Decoder(list[tuple[int, str, str | None, str | None, datetime]])


async def load(db: Queryable, ids: Sequence[int]) -> dict[int, tuple[Signal, ...]]:
    """Inboxes by instance, in arrival order; large ones page by page."""
    inboxes: dict[int, list[Signal]] = {}
    await _load_page(db, ids, 0, inboxes)
    for instance_id in [instance_id for instance_id, inbox in inboxes.items() if len(inbox) == PAGE]:
        while await _load_page(db, [instance_id], inboxes[instance_id][-1].id, inboxes) == PAGE:
            pass
    return {instance_id: tuple(inbox) for instance_id, inbox in inboxes.items()}


async def _load_page(db: Queryable, ids: Sequence[int], after: int, inboxes: dict[int, list[Signal]]) -> int:
    rows = await db.fetch("signals/load", ids, after, PAGE)
    for instance_id, *stored in rows:
        inboxes.setdefault(instance_id, []).append(_read(*stored))
    return len(rows)


def read_inbox(text: str) -> tuple[Signal, ...]:
    """Decode an inbox that the claim statement has read."""
    return tuple(_read(*stored) for stored in _INBOX.decode(text))


def _read(id_: int, name: str, payload: str | None, dedup_key: str | None, sent_at: datetime) -> Signal:
    return Signal(id_, name, None if payload is None else decode_value(payload), dedup_key, sent_at)


async def recheck(db: Queryable, parked: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[int, str]]:
    """Wake parked rows that have a signal that their step did not receive; returns their ids and queues."""
    received = ["{" + ",".join(map(str, ids)) + "}" for _, ids in parked]
    rows = await db.fetch("signals/recheck", [id_ for id_, _ in parked], received)
    return [(id_, queue) for id_, queue in rows]


async def consume(db: Queryable, signal_ids: Sequence[int]) -> None:
    for first in range(0, len(signal_ids), PAGE):
        await db.fetch("signals/consume", signal_ids[first : first + PAGE])


async def drop(db: Queryable, instance_ids: Sequence[int]) -> bool:
    """Delete a page of inboxes of done instances, in the transaction that ends them; True if signals may be left."""
    return await _drop(db, instance_ids, alone=False) is not None


async def sweep(db: Queryable, instance_ids: Sequence[int]) -> None:
    """Delete the inboxes of done instances, page by page, without waiting for the disk."""
    left: _Left | None = (instance_ids, 0)
    while left is not None:
        left = await _drop(db, *left, alone=True)


async def empty(db: Queryable, instance_ids: Sequence[int]) -> None:
    """Delete the inboxes of instances before they are pruned, page by page, in the transaction that locks them."""
    left: _Left | None = (instance_ids, 0)
    while left is not None:
        ids, after = left
        [row] = await db.fetch("signals/prune", ids, PAGE, after)
        left = _left(ids, row)


_Left = tuple[Sequence[int], int]
"""Instances that may have signals left, and the id of the last deleted signal of the first one."""


async def _drop(db: Queryable, instance_ids: Sequence[int], after: int = 0, *, alone: bool) -> _Left | None:
    [row] = await db.fetch("signals/drop", instance_ids, alone, PAGE, after)
    return _left(instance_ids, row)


def _left(instance_ids: Sequence[int], page: Row) -> _Left | None:
    """The instances that may have signals left after a page; None if there are none."""
    if page["number"] < PAGE:
        return None
    return instance_ids[instance_ids.index(page["instance_id"]) :], page["id"]
