"""Insert instances. `start` and `start_children` choose the statement:

| condition | statement |
|---|---|
| a uniform batch: no keys, and the entries differ in their states only | `instances/start_fast` |
| the same in a stream (`prepare`), states of 256 characters or more on average | the same, then COPY of the states |
| children that are a uniform batch | `children/start_fast`; claims as many as there are reserved slots |
| anything else | `instances/start` |
| anything else, with keys | then `instances/find_tombstoned`, and `instances/undo_start` for keys of pruned holders |
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import Any, TypeAlias

import msgspec

from stepwell._core.commit import PAGE
from stepwell._core.instance import Claim
from stepwell._core.limits.requirement import requirement_text
from stepwell._core.reservation import Reservation
from stepwell._core.start_request import NewInstance
from stepwell._store.connection.pool import Queryable, Session
from stepwell._store.operations.encoding import joined, numbers

WIDE = 256  # average characters of a state from which COPY is worth a second round trip
LARGEST_TEXT = 16_000_000  # characters of children's states per statement; a single state may be larger

Parent: TypeAlias = tuple[int, int, int]
"""The id and round of a parent, and the index of the child."""
_NO_PARENT = (None, None, None)

# The fields that all entries of a uniform batch share, in the order of start_fast.sql; there `due` is two columns.
_common_of = attrgetter(
    "machine", "version", "step", "queue", "priority", "due", "tenant", "concurrency_key", "needs"
)  # fmt: skip

# The binary format of COPY: a row starts with its number of fields, and each field with its length.
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_ID = Struct(">hiq").pack
_LENGTH = Struct(">i").pack
_FIELDS, _ID_LENGTH = 2, 8
_JSONB = b"\x01"  # the version of the binary jsonb format; the text follows


class Started(msgspec.Struct, frozen=True, gc=False):
    """One inserted instance; `later` if it waits for its due time."""

    position: int
    id: int
    queue: str
    later: bool


class StartedChildren(msgspec.Struct, frozen=True):
    """Inserted children; the first of them are already claimed."""

    started: list[Started]
    claims: Sequence[Claim] = ()


Reader: TypeAlias = Callable[[], list[Started]]
"""Reads the reply of an insert; called while Postgres runs the next statement."""


async def start(db: Queryable, entries: Sequence[NewInstance]) -> list[Started]:
    """Insert instances; positions of duplicate keys are missing. Entries with keys need a transaction."""
    arguments = _uniform(entries)
    if arguments is None:
        return await _start_keyed(db, entries)
    return _read(entries, *await _insert_uniform(db, arguments))


def prepare(session: Session, entries: Sequence[NewInstance]) -> Callable[[], Coroutine[Any, Any, Reader]]:
    """As `start`, for instances without keys, in three phases: this function encodes, the returned function sends and
    returns the reader of the reply."""
    is_wide = _are_wide(entries)
    arguments = _uniform(entries, copied=is_wide)
    if arguments is None:
        return partial(_send_full, session, entries)
    return partial(_send_uniform, session, entries, arguments, _encoded(entries) if is_wide else [])


async def start_children(
    db: Queryable, entries: Sequence[NewInstance], parents: Sequence[Parent], reserved: Reservation | None = None
) -> StartedChildren:
    """Insert children, in a transaction. If they are a uniform batch, as many as there are reserved slots are inserted
    already claimed."""
    arguments = _uniform(entries)
    if arguments is None:
        return StartedChildren(await _start_keyed(db, entries, parents))
    return await _insert_children(db, entries, arguments, parents, reserved)


async def start_in_pages(
    session: Session, children: Sequence[NewInstance], parent_id: int, round_: int
) -> list[Started]:
    """Insert a large number of children of one parent, page by page."""
    started: list[Started] = []
    for first, end in _pages(children):
        parents = [(parent_id, round_, index) for index in range(first, end)]
        page = await start_children(session, children[first:end], parents)
        started += [Started(first + row.position, row.id, row.queue, row.later) for row in page.started]
    return started


def _pages(children: Sequence[NewInstance]) -> Iterator[tuple[int, int]]:
    """The first index and the end of each page."""
    first = text = 0
    for number, child in enumerate(children):
        if number > first and (number - first == PAGE or text + len(child.state) > LARGEST_TEXT):
            yield first, number
            first, text = number, 0
        text += len(child.state)
    yield first, len(children)


async def _start_keyed(
    db: Queryable, entries: Sequence[NewInstance], parents: Sequence[Parent] | None = None
) -> list[Started]:
    """Insert instances, some of which may have keys.

    If the statement waited while the last holder of a key was pruned, it did not see the tombstone of that key: a
    second statement finds such instances, and a third one deletes them.
    """
    started = await insert_full(db, entries, parents)
    keyed = [row.id for row in started if entries[row.position].key is not None]
    tombstoned = {row["id"] for row in await db.fetch("instances/find_tombstoned", keyed)} if keyed else set()
    if tombstoned:
        await db.fetch("instances/undo_start", sorted(tombstoned))
    return [row for row in started if row.id not in tombstoned]


async def insert_full(
    db: Queryable, entries: Sequence[NewInstance], parents: Sequence[Parent] | None = None
) -> list[Started]:
    """Insert instances of any kind, or children of the given parents; positions of duplicate keys are missing."""
    of: Sequence[Parent | tuple[None, None, None]] = parents or [_NO_PARENT] * len(entries)
    rows = await db.fetch(
        "instances/start",
        [e.machine for e in entries],
        [e.version for e in entries],
        [e.step for e in entries],
        [e.queue for e in entries],
        [e.priority for e in entries],
        [e.due if isinstance(e.due, timedelta) else None for e in entries],
        [e.due if isinstance(e.due, datetime) else None for e in entries],
        [e.tenant for e in entries],
        [e.key for e in entries],
        [e.key_scope for e in entries],
        [e.concurrency_key for e in entries],
        [e.state for e in entries],
        [parent for parent, _, _ in of],
        [round_ for _, round_, _ in of],
        [index for _, _, index in of],
        [],  # unchecked: none, as Python has checked their states
        [requirement_text(e.needs) for e in entries] if any(e.needs is not None for e in entries) else [],
    )
    return [Started(*row) for row in rows]


def _uniform(entries: Sequence[NewInstance], *, copied: bool = False) -> tuple[object, ...] | None:
    """The arguments of the fast statements; None if the entries are not a uniform batch, or a state contains the
    separator. With `copied`, without the states."""
    *common, due, tenant, concurrency_key, needs = fields = _common_of(entries[0])
    if not all(entry.key is None and _common_of(entry) == fields for entry in entries):
        return None
    states = joined(["" if copied else entry.state for entry in entries])
    if states is None:
        return None
    delay, at = (due, None) if isinstance(due, timedelta) else (None, due)
    return states, *common, delay, at, tenant, concurrency_key, None if needs is None else requirement_text(needs)


async def _insert_uniform(db: Queryable, arguments: tuple[object, ...]) -> tuple[list[int], bool]:
    """Insert a uniform batch; returns the ids, and whether the instances wait for their due time."""
    [(ids, later)] = await db.fetch("instances/start_fast", *arguments)
    return ids, later


def _read(entries: Sequence[NewInstance], ids: Sequence[int], later: bool) -> list[Started]:
    """The rows of a uniform batch."""
    queue = entries[0].queue
    return [Started(position, id_, queue, later) for position, id_ in enumerate(ids)]


async def _send_full(session: Session, entries: Sequence[NewInstance]) -> Reader:
    rows = await insert_full(session, entries)
    return lambda: rows


async def _send_uniform(
    session: Session, entries: Sequence[NewInstance], arguments: tuple[object, ...], copied: Sequence[bytes]
) -> Reader:
    ids, later = await _insert_uniform(session, arguments)
    if copied:
        await _copy(session, ids, copied)
    return partial(_read, entries, ids, later)


def _are_wide(entries: Sequence[NewInstance]) -> bool:
    """Whether to copy the states: an INSERT extends the file page by page, a COPY by many pages at once."""
    return len(entries) > 1 and sum(len(entry.state) for entry in entries) >= WIDE * len(entries)


def _encoded(entries: Iterable[NewInstance]) -> list[bytes]:
    """The states in the format of COPY: the work that does not need the ids."""
    texts = [entry.state.encode() for entry in entries]
    return [_LENGTH(len(text) + 1) + _JSONB + text for text in texts]


async def _copy(session: Session, ids: Iterable[int], states: Iterable[bytes]) -> None:
    """Store the states of instances that this transaction has inserted without them."""
    parts = [_HEAD]
    for id_, state in zip(ids, states, strict=True):
        parts += (_ID(_FIELDS, _ID_LENGTH, id_), state)
    parts.append(_END)
    await session.copy("instance_data", ("id", "state"), b"".join(parts))


async def _insert_children(
    db: Queryable, entries: Sequence[NewInstance], arguments: tuple[object, ...], parents: Sequence[Parent],
    reserved: Reservation | None,
) -> StartedChildren:  # fmt: skip
    """Insert children that are a uniform batch, and claim as many as there are reserved slots in their queue."""
    states, *common = arguments
    queue = entries[0].queue
    if reserved is not None and reserved.queue != queue:
        reserved = None
    [(ids, later, claimed, claimed_at)] = await db.fetch(
        "children/start_fast",
        states,
        numbers([parent for parent, _, _ in parents]),
        numbers([round_ for _, round_, _ in parents]),
        numbers([index for _, _, index in parents]),
        *common,
        0 if reserved is None else min(reserved.slots, len(entries)),
        None if reserved is None else reserved.worker_id,
    )
    started = _read(entries, ids, later)
    if reserved is None:
        return StartedChildren(started)
    worker_id = reserved.worker_id
    claims = [
        Claim(id_, worker_id, 1, entry.machine, entry.version, entry.step, 0, 0, entry.tenant, None, None, queue,
              claimed_at, parent_id=parent_id, priority=entry.priority)
        for id_, entry, (parent_id, _, _) in zip(ids[:claimed], entries, parents, strict=False)
    ]  # fmt: skip
    return StartedChildren(started, claims)
