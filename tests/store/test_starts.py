"""The two statements that insert: what start.sql stores, start_fast.sql stores as well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from stepwell._core.start_request import NewInstance
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell._store.operations import start

PLAIN = NewInstance(
    machine="order", version=3, step="ship", queue="checkout", priority=0, due=None, tenant="",
    concurrency_key=None, state='{"count": 1}',
)  # fmt: skip
KEYED = msgspec.structs.replace(PLAIN, key="k", key_scope="live")
OWN = ("id", "created_at", "updated_at", "due_at", "child_index")  # two rows of two transactions differ in them

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "every option": {"priority": -5, "tenant": "acme", "concurrency_key": "a 7", "state": '{"b": 1, "a": [null]}'},
    "after a delay": {"due": timedelta(hours=1)},
    "at a time to come": {"due": datetime(2040, 1, 1, tzinfo=UTC)},
    "at a time that has passed": {"due": datetime(2020, 1, 1, tzinfo=UTC)},
}


async def stored(database: Database, id_: int) -> dict[str, Any]:
    """A row with its state, and how far its due time is from its creation."""
    connection = await asyncpg.connect(database.dsn)
    row = await connection.fetchrow(
        """select i.*, d.state, d.result, d.error, d.operated, d.unchecked, i.due_at - i.created_at as waits
           from stepwell.instances i join stepwell.instance_data d using (id) where i.id = $1""", id_,
    )  # fmt: skip
    await connection.close()
    return {name: value for name, value in dict(row).items() if name not in OWN}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_instance_is_the_same_whichever_statement_inserts_it(database: Database, kind: str) -> None:
    entry = msgspec.structs.replace(PLAIN, **KINDS[kind])

    [alike] = await start.start(database, [entry])
    one, _ = await start.start(database, [entry, KEYED])

    rows = [await stored(database, alike.id), await stored(database, one.id)]
    if isinstance(entry.due, datetime):
        waits = [row.pop("waits") for row in rows]
        assert abs(waits[0] - waits[1]) < timedelta(minutes=1)
    assert rows[0] == rows[1]
    assert (alike.queue, alike.later) == (one.queue, one.later)


async def test_a_child_is_the_same_whichever_statement_inserts_it(database: Database) -> None:
    parents = [(7, 2, index) for index in range(2)]

    alike, _ = (await start.start_children(database, [PLAIN, PLAIN], parents)).started
    one, _ = (await start.start_children(database, [PLAIN, KEYED], parents)).started

    assert await stored(database, alike.id) == await stored(database, one.id)


async def test_instances_of_a_uniform_batch_have_their_own_states_in_order(database: Database) -> None:
    entries = [msgspec.structs.replace(PLAIN, state=f'{{"count": {n}}}') for n in range(300)]

    started = await start.start(database, entries)

    ids = [row.id for row in started]
    found = {row.id: row.state for row in await instances.read(database, ids)}
    assert ids == sorted(ids)
    assert [found[id_] for id_ in ids] == [{"count": n} for n in range(300)]
