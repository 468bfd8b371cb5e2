"""A worker's id is its only credential: drawn at random, and valid only for the process that drew it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from stepwell._store.connection.sql_files import statement
from stepwell._store.registrations.workers import HostIdentity

LEASE = timedelta(seconds=60)
PLACE = HostIdentity("h", "b", 1, "p")


async def enter(connection: asyncpg.Connection, place: HostIdentity = PLACE) -> int:
    given = (place.host, place.boot, place.pid, place.process, "r", "{}", [], LEASE)
    return int(await connection.fetchval(statement("workers/register"), *given))


async def test_worker_ids_are_63_random_bits(connection: asyncpg.Connection) -> None:
    ids = [await enter(connection) for _ in range(64)]

    assert all(0 < id_ < 2**63 for id_ in ids)
    set_in_some = clear_in_some = 0
    for id_ in ids:
        set_in_some |= id_
        clear_in_some |= ~id_
    assert (set_in_some, clear_in_some & (2**63 - 1)) == (2**63 - 1, 2**63 - 1)


@pytest.mark.parametrize("other", [{"host": "i"}, {"boot": "c"}, {"pid": 2}, {"process": "q"}])
async def test_a_process_renews_no_lease_of_another_process(
    connection: asyncpg.Connection, other: dict[str, object]
) -> None:
    worker_id = await enter(connection)

    mine = await beat(connection, worker_id, PLACE)
    foreign = await beat(connection, worker_id, replace(PLACE, **other))

    assert (len(mine), foreign) == (1, [])


async def beat(connection: asyncpg.Connection, worker_id: int, place: HostIdentity) -> list[asyncpg.Record]:
    return await connection.fetch(
        statement("workers/beat"), worker_id, LEASE, 0, LEASE, place.host, place.boot, place.pid, place.process
    )
