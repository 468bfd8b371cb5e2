"""Calls of the public SQL functions on a caller's connection, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.start_request import NewInstance
from stepwell._store.drivers import Borrowed
from stepwell._store.drivers.call import Argument, Call
from stepwell._store.operations.deliver import NewSignal
from stepwell.errors import Duplicate

_to_json = msgspec.json.Encoder().encode

LARGEST_ARRAY = 32 * 1024 * 1024
"""Bytes of JSON in one call. Postgres accepts arrays of 256 MB, in which small numbers take six times their text."""
LONGEST_ARRAY = 10_000
"""Objects in one call; the SQL functions have the same limit."""


async def start_many(
    connection: Borrowed, entries: Sequence[NewInstance], *, notify: bool, schema: str
) -> list[int | Duplicate]:
    """Start instances; returns the new id, or the Duplicate, of each entry."""
    answers: dict[int, int | Duplicate] = {}
    order = [(entry.tenant, entry.key or "") for entry in entries]
    for places, array in _arrays([_entry(entry) for entry in entries], order):
        arguments = (Argument("entries", "jsonb", array), Argument("notify", "boolean", notify))
        call = Call(schema, "start_many", arguments, ("position", "id", "is_duplicate"))
        for position, id_, is_duplicate in await connection.fetch(call):
            place = places[position]
            answers[place] = Duplicate(str(entries[place].key), id_) if is_duplicate else id_
    return [answers[position] for position in range(len(entries))]


async def signal_many(
    connection: Borrowed, signals: Sequence[NewSignal], *, notify: bool, schema: str
) -> list[int | None]:
    """Deliver signals; returns the id that each signal reached, or None if there was no target."""
    reached: dict[int, int | None] = {}
    order = [(signal.id or 0, signal.tenant or "", signal.key or "") for signal in signals]
    for places, array in _arrays([_signal(signal) for signal in signals], order):
        arguments = (Argument("signals", "jsonb", array), Argument("notify", "boolean", notify))
        for position, id_ in await connection.fetch(Call(schema, "signal_many", arguments, ("position", "id"))):
            reached[places[position]] = id_
    return [reached[position] for position in range(len(signals))]


async def cancel(
    connection: Borrowed, id_: int | None, key: str | None, *, tenant: str | None, reason: str, by: str | None,
    cascade: bool, notify: bool, schema: str,
) -> bool | None:  # fmt: skip
    """Cancel an instance and its descendants; False if it had ended, None if it does not exist."""
    arguments = (
        Argument("id", "bigint", id_),
        Argument("key", "text", key),
        Argument("reason", "text", reason),
        Argument("cascade", "boolean", cascade),
        Argument("by", "text", by),
        Argument("tenant", "text", tenant),
        Argument("notify", "boolean", notify),
    )
    [[was_cancelled]] = await connection.fetch(Call(schema, "try_cancel", arguments, ("try_cancel",)))
    return None if was_cancelled is None else bool(was_cancelled)


def _arrays(objects: Sequence[Any], order: Sequence[Any]) -> Iterator[tuple[list[int], str]]:
    """The objects as JSON arrays of limited size and length, each with the positions of its objects.

    Nearly always there is one array. Several are filled in one order by all callers, to avoid deadlocks between them.
    """
    texts = [_to_json(one) for one in objects]
    places = list(range(len(texts)))
    if len(texts) > LONGEST_ARRAY or sum(map(len, texts)) > LARGEST_ARRAY:
        places.sort(key=order.__getitem__)
    first, size = 0, 0
    for last, place in enumerate(places):
        if last - first == LONGEST_ARRAY or (size and size + len(texts[place]) > LARGEST_ARRAY):
            yield places[first:last], _array(texts, places[first:last])
            first, size = last, 0
        size += len(texts[place])
    yield places[first:], _array(texts, places[first:])


def _array(texts: Sequence[bytes], places: Sequence[int]) -> str:
    return b"".join((b"[", b",".join(texts[place] for place in places), b"]")).decode()


def _entry(entry: NewInstance) -> dict[str, Any]:
    return {
        "machine": entry.machine,
        "version": entry.version,
        "step": entry.step,
        "queue": entry.queue,
        "priority": entry.priority,
        "delay": entry.due.total_seconds() if isinstance(entry.due, timedelta) else None,
        "at": entry.due.astimezone(UTC).isoformat() if isinstance(entry.due, datetime) else None,
        "tenant": entry.tenant,
        "key": entry.key,
        "key_scope": entry.key_scope,
        "concurrency_key": entry.concurrency_key,
        **({} if entry.needs is None else _limits(entry.needs)),
        "state": msgspec.Raw(entry.state.encode()),
        "checked": True,  # against its type; effective only if the connection's role may write states
    }


def _limits(needs: LimitRequirement) -> dict[str, Any]:
    """The requirements of the start; the SQL function adds those that the step declares."""
    weight = None if needs.rate_limit is None else needs.weight
    return {"concurrency_limit": needs.own_limit, "rate_limit": needs.rate_limit, "weight": weight}


def _signal(signal: NewSignal) -> dict[str, Any]:
    return {
        "id": signal.id,
        "tenant": signal.tenant,
        "key": signal.key,
        "name": signal.name,
        "payload": msgspec.Raw(signal.payload.encode()),
        "dedup_key": signal.dedup_key,
    }
