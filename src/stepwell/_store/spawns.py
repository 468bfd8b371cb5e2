"""Calls of `sql/spawns`: children that differ in their states and parents only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell._core.entries import NewInstance
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._store.database import Queryable
from stepwell._store.instances import Parent, Started, alike_arguments, inserted
from stepwell._store.wire import numbers


class Born(msgspec.Struct, frozen=True):
    """Children that were inserted; the first of them are claimed already."""

    started: list[Started]
    claims: list[Claim]


async def start(
    db: Queryable, entries: Sequence[NewInstance], parents: Sequence[Parent], reserved: Reservation | None
) -> Born | None:
    """Insert children that are alike and have no keys; as many as slots are reserved for are claimed with it. None if
    they are not such."""
    arguments = alike_arguments(entries)
    if arguments is None:
        return None
    states, *common = arguments
    queue = entries[0].queue
    if reserved is not None and reserved.queue != queue:
        reserved = None
    [(ids, later, claimed, claimed_at)] = await db.fetch(
        "spawns/start",
        states,
        numbers([parent for parent, _, _ in parents]),
        numbers([round_ for _, round_, _ in parents]),
        numbers([index for _, _, index in parents]),
        *common,
        0 if reserved is None else min(reserved.slots, len(entries)),
        None if reserved is None else reserved.worker_id,
    )
    claims: list[Claim] = []
    if reserved is not None:
        worker_id = reserved.worker_id
        claims = [
            Claim(id_, worker_id, 1, entry.machine, entry.version, entry.step, 0, 0, entry.tenant, None, None, queue,
                  claimed_at, parent_id=parent_id, priority=entry.priority)
            for id_, entry, (parent_id, _, _) in zip(ids[:claimed], entries, parents, strict=False)
        ]  # fmt: skip
    return Born(inserted(entries, ids, later), claims)
