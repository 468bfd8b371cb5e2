"""Deliver signals. `deliver` chooses the statement:

| condition | statement |
|---|---|
| signals to distinct instances, addressed by id, without tenant and deduplication key | `signals/deliver_fast` |
| anything else, or a text contains the separator | `signals/deliver` |
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell._store.connection.pool import Queryable
from stepwell._store.operations.encoding import joined, numbers


class NewSignal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A validated signal: to a key of a tenant, or to an id, optionally within a tenant."""

    id: int | None
    tenant: str | None
    key: str | None
    name: str
    payload: str  # JSON
    dedup_key: str | None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The result of a signal: the target it reached, and the queue to notify if the target became claimable."""

    target: int | None
    queue: str | None
    is_orphaned: bool  # the holder of the key ended while the statement waited: there may be a new one


_NO_TARGET = Delivery(None, None, is_orphaned=False)


async def deliver(db: Queryable, signals: Sequence[NewSignal]) -> list[Delivery]:
    """Store signals and wake the instances that await them."""
    texts = _simple_texts(signals)
    if texts is not None:
        rows = await db.fetch("signals/deliver_fast", *texts)
        found = {id_: Delivery(id_, queue, False) for queue, ids in rows for id_ in map(int, ids.split(","))}
        return [found.get(s.id or 0, _NO_TARGET) for s in signals]
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


def _simple_texts(signals: Sequence[NewSignal]) -> tuple[str, str, str] | None:
    """Ids, names and payloads in the order of ids, as deliver_fast.sql reads them; None unless the signals are to
    distinct instances, addressed by id alone, without deduplication keys."""
    if len({s.id for s in signals if s.key is None and s.dedup_key is None and s.tenant is None}) < len(signals):
        return None
    in_order = sorted(signals, key=lambda s: s.id or 0)
    names, payloads = joined([s.name for s in in_order]), joined([s.payload for s in in_order])
    if names is None or payloads is None:
        return None
    return numbers([s.id or 0 for s in in_order]), names, payloads
