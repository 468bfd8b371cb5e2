"""Calls of `sql/signals`: the inbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Self

import msgspec

from stepwell._core.codec import decode_value
from stepwell._core.records import Claim, Signal, StoredSignal
from stepwell._core.reservation import Reservation
from stepwell._store.database import Queryable, Row
from stepwell._store.wire import SEPARATOR, joined, numbers

_INBOX = msgspec.json.Decoder(list[tuple[int, str, str | None, str | None, datetime]])


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


_NOBODY = Delivery(None, None, is_orphaned=False)


class Plain(msgspec.Struct, frozen=True, gc=False):
    """Signals each of which is for another instance, known by its id, and has to be remembered by nobody; as their
    statements read them, in the order of ids."""

    ids: str
    names: str
    payloads: str

    @classmethod
    def of(cls, signals: Sequence[NewSignal]) -> Self | None:
        """None if they are not such."""
        if len({s.id for s in signals if s.key is None and s.dedup_key is None}) < len(signals):
            return None
        in_order = sorted(signals, key=lambda s: s.id or 0)
        names, payloads = joined([s.name for s in in_order]), joined([s.payload for s in in_order])
        if names is None or payloads is None:
            return None
        return cls(numbers([s.id or 0 for s in in_order]), names, payloads)


class InHand(msgspec.Struct, frozen=True):
    """What became of signals some of whose targets go on in a worker's hands."""

    deliveries: list[Delivery]
    claims: list[Claim]


async def deliver(db: Queryable, signals: Sequence[NewSignal]) -> list[Delivery]:
    """Store signals, and wake who awaits them; the short way, if they need no more than their targets."""
    plain = Plain.of(signals)
    if plain is not None:
        rows = await db.fetch("signals/deliver_plain", plain.ids, plain.names, plain.payloads)
        return _each(signals, {id_: Delivery(id_, queue, False) for queue, ids in rows for id_ in _numbers(ids)})
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


async def deliver_in_hand(
    db: Queryable, signals: Sequence[NewSignal], plain: Plain, reserved: Reservation, labels: Sequence[str]
) -> InHand:
    """Deliver plain signals, and let those who wake go on in the hands of who has slots for them."""
    rows = await db.fetch(
        "signals/deliver_in_hand", plain.ids, plain.names, plain.payloads, reserved.worker_id, reserved.queue, labels
    )
    found: dict[int, Delivery] = {}
    claims: list[Claim] = []
    for row in rows:
        goes_on = row["claimed_at"] is not None
        queue = None if goes_on else row["queue"]
        found |= {id_: Delivery(id_, queue, False) for id_ in _numbers(row["ids"])}
        claims += _woken(row, reserved.worker_id) if goes_on else ()
    return InHand(_each(signals, found), claims)


def _each(signals: Sequence[NewSignal], found: dict[int, Delivery]) -> list[Delivery]:
    return [found.get(s.id or 0, _NOBODY) for s in signals]


def _numbers(text: str) -> Iterator[int]:
    return map(int, text.split(","))


def _woken(row: Row, worker_id: int) -> Iterator[Claim]:
    """Those who go on in hand and are alike."""
    machine, version, step, tenant = row["machine"], row["version"], row["step"], row["tenant"]
    queue, claimed_at, awaits, priority = row["queue"], row["claimed_at"], tuple(row["awaits"]), row["priority"]
    sent_at = row["sent_at"]
    for id_, fence, key, parent_id, signal_id, name, payload in zip(
        _numbers(row["ids"]), _numbers(row["fences"]), row["keys"], row["parents"], _numbers(row["signals"]),
        row["names"].split(SEPARATOR), row["payloads"].split(SEPARATOR), strict=True,
    ):  # fmt: skip
        yield Claim(
            id_, worker_id, fence, machine, version, step, 0, 0, tenant, key, None, queue, claimed_at, True, awaits,
            parent_id, 0, priority, None, None, StoredSignal(signal_id, name, payload, sent_at),
        )  # fmt: skip


async def load(db: Queryable, ids: Sequence[int]) -> dict[int, tuple[Signal, ...]]:
    """Inboxes by instance, in arrival order."""
    inboxes: dict[int, list[Signal]] = {}
    for instance_id, *stored in await db.fetch("signals/load", ids):
        inboxes.setdefault(instance_id, []).append(_read(*stored))
    return {instance_id: tuple(inbox) for instance_id, inbox in inboxes.items()}


def read(stored: StoredSignal) -> Signal:
    """A signal that has come with the claim of whom it has woken."""
    return _read(stored.id, stored.name, stored.payload, None, stored.sent_at)


def read_inbox(text: str) -> tuple[Signal, ...]:
    """An inbox that was read with its claim."""
    return tuple(_read(*stored) for stored in _INBOX.decode(text))


def _read(id_: int, name: str, payload: str | None, dedup_key: str | None, sent_at: datetime) -> Signal:
    return Signal(id_, name, None if payload is None else decode_value(payload), dedup_key, sent_at)


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
