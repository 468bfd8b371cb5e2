"""stepwell.start in SQL keeps the rules of engine.start: options, keys, batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Status
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.machines import Order

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)


async def start(connection: asyncpg.Connection, machine: str | None = "Order", **options: Any) -> int:
    """select stepwell.start(machine, option => value, …)"""
    given = "".join(f", {name} => ${number}" for number, name in enumerate(options, start=2))
    return int(await connection.fetchval(f"select stepwell.start($1{given})", machine, *options.values()))


# start


async def test_a_start_by_sql_equals_a_start_by_python(h: Harness, sql: asyncpg.Connection) -> None:
    options: dict[str, Any] = {
        "key": "a", "key_scope": "forever", "queue": "slow", "priority": -7, "at": AT, "step": "finish",
        "concurrency_key": "c", "tenant": "acme",
    }  # fmt: skip

    by_sql = await start(sql, state='{"number": 7}', version=1, **options)
    by_python = await h.engine.start(Order, {"number": 7}, **options | {"key": "b"})

    columns = (
        "machine, version, step, status, hold, queue, priority, due_at, key_scope, concurrency_key, tenant, attempt,"
        " fence, parent_id, parent_round, child_index, state, result, error"
    )
    one, other = await h.sql(
        f"select {columns} from stepwell.instances join stepwell.instance_data using (id) where id = any ($1)"
        " order by id", [by_sql, by_python.id],
    )  # fmt: skip
    assert dict(one) == dict(other)
    assert (one["step"], one["priority"], one["due_at"], one["hold"]) == ("finish", -7, AT, "due")


async def test_a_delay_counts_from_the_beginning_of_the_callers_transaction(
    h: Harness, sql: asyncpg.Connection
) -> None:
    async with sql.transaction():
        began = await sql.fetchval("select now() from pg_sleep(0.1)")
        by_sql = await start(sql, delay=timedelta(seconds=60))
        by_python = await h.engine.start(Order, delay=timedelta(seconds=60), connection=sql)

    rows = await h.sql("select due_at from stepwell.instances where id = any ($1)", [by_sql, by_python.id])
    assert {row["due_at"] for row in rows} == {began + timedelta(seconds=60)}


async def test_options_that_are_not_given_come_from_the_machine(h: Harness, sql: asyncpg.Connection) -> None:
    started = await h.engine.get(await start(sql))

    assert (started.machine, started.version, started.step, started.queue) == ("Order", 1, "start", "default")
    assert (started.state, started.key, started.priority, started.status) == ({}, None, 0, Status.RUNNABLE)


@pytest.mark.parametrize("option", [
    "state", "key", "key_scope", "queue", "priority", "delay", "at", "step", "concurrency_key", "version", "tenant",
    "notify",
])  # fmt: skip
async def test_a_null_option_equals_one_that_is_not_given(h: Harness, sql: asyncpg.Connection, option: str) -> None:
    started = await h.engine.get(await start(sql, **{option: None}))

    assert (started.step, started.queue, started.priority, started.tenant) == ("start", "default", 0, "")
    assert (started.state, started.key, started.status) == ({}, None, Status.RUNNABLE)


async def test_a_delay_counts_from_the_databases_clock(h: Harness, sql: asyncpg.Connection) -> None:
    await h.advance(timedelta(days=3))

    one = await start(sql, delay=timedelta(hours=1))
    many = await sql.fetchval("select id from stepwell.start_many('[{\"machine\": \"Note\", \"delay\": 3600.5}]')")

    rows = await h.sql("select hold, due_at - created_at as after from stepwell.instances where id = any ($1)"
                       " order by id", [one, many])  # fmt: skip
    assert [tuple(row) for row in rows] == [("due", timedelta(hours=1)), ("due", timedelta(hours=1, seconds=0.5))]


async def test_a_day_has_24_hours_whatever_the_zone_of_the_session(h: Harness, sql: asyncpg.Connection) -> None:
    await h.advance(datetime(2046, 3, 24, 12, tzinfo=UTC) - datetime.now(UTC))  # half a day before a clock goes ahead
    await sql.execute("set timezone = 'Europe/Amsterdam'")

    started = await sql.fetchval("select stepwell.start('Note', delay => '1 day')")

    [row] = await h.sql("select due_at - created_at as after from stepwell.instances where id = $1", started)
    assert row["after"] == timedelta(hours=24)


async def test_a_time_that_has_passed_is_now(h: Harness, sql: asyncpg.Connection) -> None:
    started = await start(sql, at=datetime(1900, 1, 1, tzinfo=UTC))

    assert (await h.sql("select hold from stepwell.instances where id = $1", started))[0]["hold"] is None


async def test_the_active_version_is_started_unless_another_is_named(h: Harness, sql: asyncpg.Connection) -> None:
    await h.sql("update stepwell.machines set active = false where name = 'Note'")
    await h.sql(
        "insert into stepwell.machines (name, version, initial, queue, steps, active)"
        " values ('Note', 2, 'begin', 'new', '{begin}', true)"
    )

    newest, oldest = await start(sql, "Note"), await start(sql, "Note", version=1)

    rows = await h.sql("select version, step, queue from stepwell.instances where id = any ($1) order by id",
                       [newest, oldest])  # fmt: skip
    assert [tuple(row) for row in rows] == [(2, "begin", "new"), (1, "start", "default")]


# keys


async def test_an_occupied_key_is_refused_with_its_holders_id(h: Harness, sql: asyncpg.Connection) -> None:
    holder = await start(sql, key="a")

    with pytest.raises(asyncpg.PostgresError) as raised:
        await start(sql, key="a")

    error = raised.value
    assert (error.sqlstate, error.column_name, error.detail) == ("SW010", "key", str(holder))
    assert error.args[0] == f"key: 'a' is occupied by instance {holder}"
    assert "if_exists => 'return'" in str(error.hint)


async def test_an_occupied_key_returns_its_holder_if_told_to(h: Harness, sql: asyncpg.Connection) -> None:
    holder = await start(sql, key="a")

    assert await start(sql, key="a", if_exists="return") == holder
    assert await start(sql, key="b", if_exists="return") != holder
    assert await start(sql, key="a", tenant="acme") != holder


async def test_a_live_key_is_free_again_after_the_end_and_a_forever_key_is_not(
    h: Harness, sql: asyncpg.Connection
) -> None:
    live, forever = await start(sql, key="live"), await start(sql, key="forever", key_scope="forever")
    for ended in (live, forever):
        await sql.fetchval("select stepwell.cancel($1)", ended)

    again = await start(sql, key="live")

    assert again != live
    assert await start(sql, key="forever", if_exists="return") == forever


async def test_the_tombstone_of_a_pruned_instance_keeps_the_key(h: Harness, sql: asyncpg.Connection) -> None:
    await h.sql("insert into stepwell.tombstones values ('', 'a', 7, now())")

    with pytest.raises(asyncpg.PostgresError) as raised:
        await start(sql, key="a")

    assert (raised.value.sqlstate, raised.value.detail) == ("SW010", "7")
    assert await start(sql, key="a", if_exists="return") == 7
    assert await h.sql("select from stepwell.instances") == []


async def test_a_key_without_a_scope_is_no_key(h: Harness, sql: asyncpg.Connection) -> None:
    first, second = await start(sql, key="a", key_scope=None), await start(sql, key="a", key_scope=None)

    assert first != second
    assert await h.sql("select from stepwell.instances where key is not null") == []


async def test_a_batch_is_checked_for_duplicates_in_the_table_and_in_itself(
    h: Harness, sql: asyncpg.Connection
) -> None:
    holder = await start(sql, key="a")
    await h.sql("insert into stepwell.tombstones values ('', 'dead', 999, now())")

    rows = await sql.fetch("select * from stepwell.start_many($1)", """[
        {"machine": "Order", "key": "b"}, {"machine": "Order", "key": "a"}, {"machine": "Note"},
        {"machine": "Note", "key": "b"}, {"machine": "Note", "key": "dead"}, {"machine": "Note", "key": "b",
         "key_scope": null}, {"machine": "Note", "key": "b", "tenant": "acme"}]""")

    answers = {row["position"]: (row["id"], row["is_duplicate"]) for row in rows}
    assert sorted(answers) == list(range(7))
    assert [answers[n][1] for n in range(7)] == [False, True, False, True, True, False, False]
    assert (answers[1][0], answers[3][0], answers[4][0]) == (holder, answers[0][0], 999)
    assert len(await h.sql("select from stepwell.instances")) == 5


async def test_an_empty_batch_is_nothing(sql: asyncpg.Connection) -> None:
    assert await sql.fetch("select * from stepwell.start_many('[]')") == []
    assert await sql.fetch("select * from stepwell.signal_many('[]')") == []


async def test_a_batch_of_thousands_returns_every_result(sql: asyncpg.Connection) -> None:
    number = 3_000
    entries = "(select jsonb_agg(jsonb_build_object('machine', 'Note', 'key', 'k' || i)) from generate_series(1, $1) i)"
    signals = "(select jsonb_agg(jsonb_build_object('name', 'n', 'key', 'k' || i)) from generate_series(1, $1) i)"

    started = await sql.fetch(f"select * from stepwell.start_many({entries})", number)
    again = await sql.fetch(f"select * from stepwell.start_many({entries})", number)
    reached = await sql.fetch(f"select * from stepwell.signal_many({signals})", number)

    ids = {row["position"]: row["id"] for row in started}
    assert len(set(ids.values())) == number
    assert {row["position"]: row["id"] for row in again if row["is_duplicate"]} == ids
    assert {row["position"]: row["id"] for row in reached} == ids
