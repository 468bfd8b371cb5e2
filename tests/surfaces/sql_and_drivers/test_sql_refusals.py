"""SQL functions refuse what the Python API refuses, with the same field, and never with an internal error."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import (
    Engine,
    InvalidInput,
    NoTarget,
    NotFound,
    PayloadTooLarge,
    Status,
    UnknownMachine,
    UnknownStep,
)
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.machines import Note, Order

AT = datetime(2030, 1, 1, tzinfo=UTC)
LONG = "x" * 201
DEEP: Any = {}
for _ in range(600):
    DEEP = {"a": DEEP}
BAD_STARTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no machine": ({"machine": None}, "SW001", "machine"),
    "unknown machine": ({"machine": "Odrer"}, "SW002", "machine"),
    "unknown version": ({"version": 9}, "SW002", "machine"),
    "unknown step": ({"step": "shp"}, "SW003", "step"),
    "empty key": ({"key": ""}, "SW001", "key"),
    "long key": ({"key": LONG}, "SW001", "key"),
    "key scope": ({"key": "a", "key_scope": "batch"}, "SW001", "key_scope"),
    "empty queue": ({"queue": ""}, "SW001", "queue"),
    "long queue": ({"queue": LONG}, "SW001", "queue"),
    "unprintable queue": ({"queue": "a\nb"}, "SW001", "queue"),
    "low priority": ({"priority": -32_769}, "SW001", "priority"),
    "high priority": ({"priority": 32_768}, "SW001", "priority"),
    "negative delay": ({"delay": timedelta(seconds=-1)}, "SW001", "delay"),
    "long delay": ({"delay": timedelta(days=36_501)}, "SW001", "delay"),
    "delay and at": ({"delay": timedelta(1), "at": AT}, "SW001", "delay"),
    "late": ({"at": datetime(9001, 1, 1, tzinfo=UTC)}, "SW001", "at"),
    "empty concurrency key": ({"concurrency_key": ""}, "SW001", "concurrency_key"),
    "long concurrency key": ({"concurrency_key": LONG}, "SW001", "concurrency_key"),
    "unknown concurrency limit": ({"concurrency_limit": "dsk"}, "SW001", "concurrency_limit"),
    "a rate as a concurrency limit": ({"concurrency_limit": "mail"}, "SW001", "concurrency_limit"),
    "unknown rate limit": ({"rate_limit": "male"}, "SW001", "rate_limit"),
    "a weight without a rate": ({"weight": 2}, "SW001", "weight"),
    "no weight": ({"rate_limit": "mail", "weight": 0}, "SW001", "weight"),
    "a weight above the burst": ({"rate_limit": "mail", "weight": 4}, "SW001", "weight"),
    "a weight above the step's burst": ({"machine": "Paced", "weight": 4}, "SW001", "weight"),
    "long tenant": ({"tenant": LONG}, "SW001", "tenant"),
    "if_exists": ({"if_exists": "ignore"}, "SW001", "if_exists"),
    "no if_exists": ({"if_exists": None}, "SW001", "if_exists"),
    "an array": ({"state": [1]}, "SW001", "state"),
    "a number": ({"state": 1}, "SW001", "state"),
    "a string": ({"state": "a"}, "SW001", "state"),
    "large": ({"machine": "Note", "state": {"a": "x" * 1_048_577}}, "SW004", "state"),
    "deep": ({"machine": "Note", "state": DEEP}, "SW001", "state"),
    "a number too long": ({"machine": "Note", "state": {"a": 10**1000}}, "SW001", "state"),
}
CLASSES = {"SW001": InvalidInput, "SW002": UnknownMachine, "SW003": UnknownStep, "SW004": PayloadTooLarge}
ONLY_SQL = {"no machine", "unknown version"}  # Python's start has no such argument


async def refused(connection: asyncpg.Connection, query: str, *args: Any) -> tuple[str, str]:
    """SQLSTATE and field of a refusal; its message begins with the field."""
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.fetch(query, *args)
    error = raised.value
    assert error.args[0].startswith(f"{error.column_name}: "), error
    return error.sqlstate, error.column_name


@pytest.mark.parametrize("case", BAD_STARTS)
async def test_a_bad_start_is_refused_with_the_same_field_in_sql_and_python(
    h: Harness, sql: asyncpg.Connection, case: str
) -> None:
    given, code, field = BAD_STARTS[case]
    options = {"machine": "Order", **given}
    named = ", ".join(f"{name} => ${number}" for number, name in enumerate(options, start=1))
    values = [json.dumps(value) if name == "state" else value for name, value in options.items()]

    assert await refused(sql, f"select stepwell.start({named})", *values) == (code, field)
    if case not in ONLY_SQL:
        with pytest.raises(CLASSES[code]) as raised:
            await h.engine.start(**options)
        assert raised.value.field.partition(".")[0] == field
    assert await h.sql("select from stepwell.instances") == []


BAD_ENTRIES: dict[str, tuple[str, str, str]] = {
    "null": ("null", "SW001", "entries"),
    "no array": ("{}", "SW001", "entries"),
    "no object": ('[{"machine": "Note"}, 1]', "SW001", "entries[1]"),
    "an array in it": ("[[]]", "SW001", "entries[0]"),
    "a version that nobody has": ('[{"machine": "Note", "version": 99999999999}]', "SW002", "machine"),
    "unknown field": ('[{"machine": "Note", "stat": {}}]', "SW001", "stat"),
    "no name": ('[{"machine": "Note", "": 1}]', "SW001", ""),
    "machine": ('[{"machine": 1}]', "SW001", "machine"),
    "no machine": ("[{}]", "SW001", "machine"),
    "version": ('[{"machine": "Note", "version": "1"}]', "SW001", "version"),
    "huge version": ('[{"machine": "Note", "version": 1e9999}]', "SW001", "version"),
    "broken priority": ('[{"machine": "Note", "priority": 1.5}]', "SW001", "priority"),
    "huge priority": ('[{"machine": "Note", "priority": 1e9999}]', "SW001", "priority"),
    "huge delay": ('[{"machine": "Note", "delay": 1e400}]', "SW001", "delay"),
    "no time": ('[{"machine": "Note", "at": "tomorrow"}]', "SW001", "at"),
    "no such day": ('[{"machine": "Note", "at": "2030-02-30T00:00Z"}]', "SW001", "at"),
    "no such zone": ('[{"machine": "Note", "at": "2030-01-01T00:00+99:00"}]', "SW001", "at"),
    "naive": ('[{"machine": "Note", "at": "2030-01-01T00:00"}]', "SW001", "at"),
    "late": ('[{"machine": "Note", "at": "9001-01-01T00:00Z"}]', "SW001", "at"),
    "checked": ('[{"machine": "Note", "checked": "yes"}]', "SW001", "checked"),
    "tenant": ('[{"machine": "Note", "tenant": []}]', "SW001", "tenant"),
    "limit": ('[{"machine": "Note", "concurrency_limit": 7}]', "SW001", "concurrency_limit"),
    "unknown limit": ('[{"machine": "Note", "concurrency_limit": "nobody"}]', "SW001", "concurrency_limit"),
    "empty part": ('[{"machine": "Note", "concurrency_limit": "desk:"}]', "SW001", "concurrency_limit"),
    "unknown rate": ('[{"machine": "Note", "rate_limit": "nobody"}]', "SW001", "rate_limit"),
    "broken weight": ('[{"machine": "Note", "rate_limit": "mail", "weight": 1.5}]', "SW001", "weight"),
    "huge weight": ('[{"machine": "Note", "rate_limit": "mail", "weight": 1e99}]', "SW001", "weight"),
    "the first of two": ('[{"machine": "Note"}, {"machine": "Note", "key": ""}, {"machine": "x"}]', "SW001", "key"),
}


async def test_a_bad_batch_is_refused_whole(h: Harness, sql: asyncpg.Connection) -> None:
    for case, (entries, code, field) in BAD_ENTRIES.items():
        found = await refused(sql, "select stepwell.start_many($1)", entries)

        assert (case, *found) == (case, code, field)
    assert await refused(sql, "select stepwell.start_many(null)") == ("SW001", "entries")
    assert await h.sql("select from stepwell.instances") == []


async def test_a_refusal_in_a_batch_names_the_entry(sql: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.PostgresError, match=r"key: is empty; leave it out instead \(in entries\[1\]\)"):
        await sql.fetch("select stepwell.start_many($1)", '[{"machine": "Note"}, {"machine": "Note", "key": ""}]')
    with pytest.raises(asyncpg.PostgresError, match=r"name: is missing; name the signal \(in signals\[1\]\)"):
        await sql.fetch("select stepwell.signal_many($1)", '[{"key": "a", "name": "n"}, {"key": "a"}]')


@pytest.mark.parametrize("at", ["infinity", "-infinity", "0044-03-15 BC", "290000-01-01"])
async def test_times_that_only_postgres_knows_are_refused(sql: asyncpg.Connection, at: str) -> None:
    found = await refused(sql, f"select stepwell.start('Note', at => '{at}')")

    assert found == ("SW001", "at")


async def test_the_last_year_of_python_is_accepted(h: Harness, sql: asyncpg.Connection) -> None:
    last = datetime(9000, 12, 31, 23, 59, 59, tzinfo=UTC)

    by_sql = await sql.fetchval("select stepwell.start('Note', at => $1)", last)
    by_python = await h.engine.start(Note, at=last)

    rows = await h.sql("select due_at from stepwell.instances where id = any ($1)", [by_sql, by_python.id])
    assert [row["due_at"] for row in rows] == [last, last]


ODD_STATES = (
    '{"a": "\\u00e9\\ud83d\\ude00\\u2028"}', '{"": {"": null}}', '{"n": 123456789012345678901234567890}',
    '{"n": 1e400}', '{"n": -0.000000000000000000000000000001}', '{"n": 1e-400}', '{"a": [[[[[]]]]]}',
    '{"a": 1, "a": 2}', '{"digits": "%s"}' % ("7" * 1200), '{"n": 0.%s1}' % ("0" * 900),
)  # fmt: skip


async def test_odd_but_valid_json_is_accepted_and_readable_by_a_worker(h: Harness, sql: asyncpg.Connection) -> None:
    notes = [await sql.fetchval("select stepwell.start('Note', $1)", state) for state in ODD_STATES]
    orders = [await sql.fetchval("select stepwell.start('Order')") for _ in ODD_STATES]
    for order, payload in zip(orders, ODD_STATES, strict=True):
        await sql.fetchval("select stepwell.signal('paid', $2, id => $1)", order, payload)

    async with h.engine.worker():
        by_note = [await h.engine.wait(note, timeout=20) for note in notes]
        by_order = [await h.engine.wait(order, timeout=20) for order in orders]

    assert [ended.status for ended in (*by_note, *by_order)] == ["done"] * 2 * len(ODD_STATES)
    assert [ended.result for ended in by_note] == [ended.result for ended in by_order]
    assert by_note[0].result == {"a": "\u00e9\U0001f600\u2028"}
    assert by_note[7].result == {"a": 2}


async def test_the_largest_payload_is_what_migrate_wrote(h: Harness, sql: asyncpg.Connection) -> None:
    await Engine(h.url, machines=[Order, Note], max_payload=1_024).migrate()
    state = json.dumps({"a": "x" * 1_024})

    by_start = await refused(sql, "select stepwell.start('Note', $1)", state)
    await sql.fetch("select stepwell.start('Note', key => 'a')")
    by_signal = await refused(sql, "select stepwell.signal('n', $1, key => 'a')", state)
    await sql.fetch("select stepwell.signal('n', $1, key => 'a')", json.dumps("x" * 1_022))

    assert (by_start, by_signal) == (("SW004", "state"), ("SW004", "payload"))


BAD_SIGNALS: dict[str, tuple[str, str, str]] = {
    "no name": ("name => null, key => 'a'", "SW001", "name"),
    "empty name": ("name => '', key => 'a'", "SW001", "name"),
    "long name": (f"name => '{LONG}', key => 'a'", "SW001", "name"),
    "no target": ("name => 'n'", "SW001", "id"),
    "two targets": ("name => 'n', id => 1, key => 'a'", "SW001", "id"),
    "empty key": ("name => 'n', key => ''", "SW001", "key"),
    "long tenant": (f"name => 'n', key => 'a', tenant => '{LONG}'", "SW001", "tenant"),
    "empty dedup key": ("name => 'n', key => 'a', dedup_key => ''", "SW001", "dedup_key"),
    "nobody of that id": ("name => 'n', id => 999", "SW011", "id"),
    "a wrong id": ("name => 'n', id => -1", "SW011", "id"),
    "nobody of that key": ("name => 'n', key => 'b'", "SW011", "key"),
    "another's key": ("name => 'n', key => 'a', tenant => 'acme'", "SW011", "key"),
    "deep": ("name => 'n', key => 'a', payload => (repeat('[', 600) || repeat(']', 600))::jsonb", "SW001", "payload"),
    "a number too long": ("name => 'n', key => 'a', payload => ('[' || repeat('9', 1001) || ']')::jsonb", "SW001",
                          "payload"),
    "no float": ("name => 'n', key => 'a', payload => (repeat('9', 309) || '.5')::jsonb", "SW001", "payload"),
    "no float either": ("name => 'n', key => 'a', payload => ('-' || repeat('9', 309) || '.0')::jsonb", "SW001",
                        "payload"),
}  # fmt: skip


async def test_a_bad_signal_is_refused_and_stores_nothing(h: Harness, sql: asyncpg.Connection) -> None:
    await sql.fetch("select stepwell.start('Order', key => 'a')")

    for case, (arguments, code, field) in BAD_SIGNALS.items():
        assert (case, *await refused(sql, f"select stepwell.signal({arguments})")) == (case, code, field)

    assert await refused(sql, "select stepwell.signal_many('{}')") == ("SW001", "signals")
    assert await refused(sql, "select stepwell.signal_many(null)") == ("SW001", "signals")
    assert await refused(sql, "select stepwell.signal_many('[{\"id\": 1.5, \"name\": \"n\"}]')") == ("SW001", "id")
    assert await h.sql("select from stepwell.signals") == []
    with pytest.raises(NoTarget):
        await h.engine.signal("b", "n")


async def test_a_tenant_beside_an_id_must_be_the_instances_own(h: Harness, sql: asyncpg.Connection) -> None:
    acme = await sql.fetchval("select stepwell.start('Order', tenant => 'acme')")
    nobodys = await sql.fetchval("select stepwell.start('Order')")

    for id_, tenant in ((acme, "globex"), (acme, ""), (nobodys, "acme")):
        beside = f"id => {id_}, tenant => '{tenant}'"
        many = json.dumps([{"id": id_, "tenant": tenant, "name": "n"}, {"id": id_, "tenant": tenant, "name": "n"}])
        assert await refused(sql, f"select stepwell.signal('n', {beside})") == ("SW011", "id")
        assert [row["id"] for row in await sql.fetch("select id from stepwell.signal_many($1)", many)] == [None, None]
        assert await refused(sql, f"select stepwell.cancel({beside})") == ("SW012", "id")
        assert await sql.fetchval(f"select stepwell.try_cancel({beside})") is None

    assert await h.sql("select from stepwell.signals") == []
    assert {(await h.engine.get(id_)).status for id_ in (acme, nobodys)} == {Status.RUNNABLE}


async def test_an_id_beside_its_own_tenant_or_none_is_reached(h: Harness, sql: asyncpg.Connection) -> None:
    acme = await sql.fetchval("select stepwell.start('Order', tenant => 'acme')")
    nobodys = await sql.fetchval("select stepwell.start('Order')")

    for id_, tenant in ((acme, "acme"), (nobodys, ""), (acme, None)):
        assert await sql.fetchval("select stepwell.signal('n', id => $1, tenant => $2)", id_, tenant) == id_
        many = json.dumps([{"id": id_, "tenant": tenant, "name": "n"}])
        assert await sql.fetchval("select id from stepwell.signal_many($1)", many) == id_
    assert await sql.fetchval("select stepwell.signal('n', id => $1)", acme) == acme

    assert await sql.fetchval("select stepwell.cancel($1, tenant => 'acme')", acme)
    assert await sql.fetchval("select stepwell.cancel($1)", nobodys)


async def test_values_a_worker_cannot_read_are_refused_even_if_marked_checked(
    h: Harness, sql: asyncpg.Connection
) -> None:
    """`checked` is Python's mark of a state that met its type; see test_sql_bounds."""
    order = await sql.fetchval("select stepwell.start('Order')")
    unreadable = [DEEP, 10**1000]

    for value in unreadable:
        start = {"machine": "Note", "state": {"a": value}, "checked": True}
        assert await refused(sql, "select stepwell.start_many($1)", json.dumps([start])) == ("SW001", "state")
        signal = {"id": order, "name": "paid", "payload": value, "checked": True}
        assert await refused(sql, "select stepwell.signal_many($1)", json.dumps([signal])) == ("SW001", "payload")
    array = [{"machine": "Note", "state": [1], "checked": True}]
    assert await refused(sql, "select stepwell.start_many($1)", json.dumps(array)) == ("SW001", "state")

    assert await h.sql("select from stepwell.signals") == []
    assert [row["id"] for row in await h.sql("select id from stepwell.instances")] == [order]


BAD_CANCELS: dict[str, tuple[str, str, str]] = {
    "no target": ("", "SW001", "id"),
    "two targets": ("id => 1, key => 'a'", "SW001", "id"),
    "cascade": ("id => 1, cascade => null", "SW001", "cascade"),
    "empty key": ("key => ''", "SW001", "key"),
    "nobody of that id": ("id => 999", "SW012", "id"),
    "nobody of that key": ("key => 'b'", "SW012", "key"),
}


async def test_a_bad_cancel_is_refused(h: Harness, sql: asyncpg.Connection) -> None:
    for case, (arguments, code, field) in BAD_CANCELS.items():
        assert (case, *await refused(sql, f"select stepwell.cancel({arguments})")) == (case, code, field)

    assert await sql.fetchval("select stepwell.try_cancel(key => 'b')") is None
    with pytest.raises(NotFound):
        await h.engine.cancel("b")


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_every_public_function_requires_read_committed(h: Harness, sql: asyncpg.Connection, level: str) -> None:
    doors = ("start('Note')", "start_many('[]')", "signal('n', id => 1)", "signal_many('[]')", "cancel(1)",
             "try_cancel(1)")  # fmt: skip
    for door in doors:
        async with sql.transaction(isolation=level):
            found = await refused(sql, f"select stepwell.{door}")

        assert found == ("SW005", "connection")
