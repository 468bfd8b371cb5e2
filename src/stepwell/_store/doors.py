"""Calls of the SQL doors, on a connection of the caller's, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec

from stepwell._core.entries import NewInstance
from stepwell._store.borrowed import Borrowed
from stepwell._store.borrowed.call import Argument, Call
from stepwell._store.signals import NewSignal
from stepwell.errors import Duplicate

_to_json = msgspec.json.Encoder().encode


async def start_many(connection: Borrowed, entries: Sequence[NewInstance], *, notify: bool) -> list[int | Duplicate]:
    """Start instances; answers in the order of the entries: the new id, or who occupies the key."""
    call = Call(
        "start_many",
        (_json("entries", [_entry(entry) for entry in entries]), Argument("notify", "boolean", notify)),
        ("position", "id", "is_duplicate"),
    )
    answers: dict[int, int | Duplicate] = {}
    for position, id_, is_duplicate in await connection.fetch(call):
        answers[position] = Duplicate(str(entries[position].key), id_) if is_duplicate else id_
    return [answers[position] for position in range(len(entries))]


async def signal_many(connection: Borrowed, signals: Sequence[NewSignal], *, notify: bool) -> list[int | None]:
    """Deliver signals; answers in their order: the id that each reached, None if nobody was there."""
    call = Call(
        "signal_many",
        (_json("signals", [_signal(signal) for signal in signals]), Argument("notify", "boolean", notify)),
        ("position", "id"),
    )
    reached = {position: id_ for position, id_ in await connection.fetch(call)}  # noqa: C416 - rows are no pairs
    return [reached[position] for position in range(len(signals))]


async def cancel(
    connection: Borrowed, id_: int | None, key: str | None, *, tenant: str, reason: str, by: str | None, cascade: bool,
    notify: bool,
) -> bool | None:  # fmt: skip
    """Cancel an instance and what is below it; False if it had ended, None if there is none."""
    arguments = (
        Argument("id", "bigint", id_),
        Argument("key", "text", key),
        Argument("reason", "text", reason),
        Argument("cascade", "boolean", cascade),
        Argument("by", "text", by),
        Argument("tenant", "text", tenant),
        Argument("notify", "boolean", notify),
    )
    [[was_cancelled]] = await connection.fetch(Call("try_cancel", arguments, ("try_cancel",)))
    return None if was_cancelled is None else bool(was_cancelled)


def _json(name: str, value: Any) -> Argument:
    return Argument(name, "jsonb", _to_json(value).decode())


def _entry(entry: NewInstance) -> dict[str, Any]:
    return {
        "machine": entry.machine,
        "version": entry.version,
        "step": entry.step,
        "queue": entry.queue,
        "priority": entry.priority,
        "delay": None if entry.delay is None else entry.delay.total_seconds(),
        "at": None if entry.at is None else entry.at.astimezone(UTC).isoformat(),
        "tenant": entry.tenant,
        "key": entry.key,
        "key_scope": entry.key_scope,
        "concurrency_key": entry.concurrency_key,
        "state": msgspec.Raw(entry.state.encode()),
        "checked": True,
    }


def _signal(signal: NewSignal) -> dict[str, Any]:
    return {
        "id": signal.id,
        "tenant": signal.tenant,
        "key": signal.key,
        "name": signal.name,
        "payload": msgspec.Raw(signal.payload.encode()),
        "dedup_key": signal.dedup_key,
        "checked": True,
    }
