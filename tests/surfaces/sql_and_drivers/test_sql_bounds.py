"""H3, M1: values sent by SQL are bounded before they are written as text, and no field of a caller disables a check."""

from __future__ import annotations

import base64
import json

import asyncpg
import pytest

from stepwell import Engine
from stepwell._store.drivers import sql_functions
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.machines import Asking, Note, Order
from tests.surfaces.sql_and_drivers.roles import connected, role
from tests.surfaces.sql_and_drivers.test_sql_refusals import refused

LARGEST = 16_384
LEAST_MEMORY = 100 * LARGEST  # bytes that a refusal may take: far less than the numbers written out
EXPANDING = {
    "whole numbers": "1e131071", "negative ones": "-9e131071", "fractions": "1e-16383", "zeros": "0e-16383",
    "zeros among others": '0,"0",0.0,0e-16383', "in objects": '{"a": {"b": [1e131071]}}',
}  # fmt: skip
DOORS = {
    "start": ("select stepwell.start('Note', $1)", '{{"a": {}}}', "state"),
    "start_many": ("select stepwell.start_many($1)", '[{{"machine": "Note", "state": {{"a": {}}}}}]', "state"),
    "signal": ("select stepwell.signal('paid', $1, key => 'a')", "{}", "payload"),
    "signal_many": ("select stepwell.signal_many($1)", '[{{"key": "a", "name": "paid", "payload": {}}}]', "payload"),
    "complete": ("select stepwell.complete($1, (select q.id from stepwell.interactions q))", "{}", "reply"),
}

COMPLETE = "select stepwell.complete('1', token => $1, interaction => $2)"


@pytest.fixture
async def bounded(h: Harness) -> Harness:
    """A database with a small max_payload, an open interaction, and an instance with the key 'a'."""
    await h.engine.start(Asking)
    await h.drain()
    await Engine(h.url, machines=[Order, Note, Asking], max_payload=LARGEST).migrate()
    await h.engine.start(Order, key="a")
    return h


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", EXPANDING)
async def test_numbers_that_are_long_in_text_are_refused_before_they_are_written(
    bounded: Harness, sql: asyncpg.Connection, door: str, kind: str
) -> None:
    """H3: 900 bytes were 13 MB as text, four times over. The memory of the backend shows whether they were written."""
    query, wrapped, field = DOORS[door]
    numbers = "[" + ",".join([EXPANDING[kind]] * 300) + "]"
    await refused(sql, query, wrapped.format("[1e131071]"))  # plans and caches are made
    before = await largest_memory(sql)

    found = await refused(sql, query, wrapped.format(numbers))

    assert found in (("SW001", field), ("SW004", field))  # of too many digits, or bytes, whichever is checked first
    assert await largest_memory(sql) - before < LEAST_MEMORY


@pytest.mark.parametrize("place", [0, 2, 3, 5, 6])
async def test_numbers_in_the_facts_of_a_token_are_not_written_as_text(
    bounded: Harness, sql: asyncpg.Connection, place: int
) -> None:
    """H3: a token of 3,700 characters was 39 MB as text, and nobody has to sign it for that."""
    [interaction] = (await bounded.engine.interactions.pending()).items
    facts = ['""', f'"{interaction.id}"', f'"{interaction.correlation_id}"', "1", '"start"', "null", "0"]
    facts[place] = f"[{','.join(['1e131071'] * 300)}]"
    written = base64.urlsafe_b64encode(f"[{','.join(facts[: max(6, place + 1)])}]".encode()).decode()
    token = f"sw1.1.{written.rstrip('=')}.x"
    await refused(sql, COMPLETE, "sw1.1.W10.x", interaction.id)
    before = await largest_memory(sql)

    found = await refused(sql, COMPLETE, token, interaction.id)

    assert found == ("SW022", "token")
    assert await largest_memory(sql) - before < LEAST_MEMORY


async def largest_memory(sql: asyncpg.Connection) -> int:
    """The peak memory of this backend, in bytes."""
    status: str = await sql.fetchval("select pg_read_file('/proc/self/status')")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


TOO_MUCH = {
    "values": "[" + ",".join(["1"] * (LARGEST // 8)) + "]",
    "values in objects": json.dumps({str(n): {} for n in range(LARGEST // 8)}),
    "values among texts": json.dumps([",[{" * 1_000, *[[1]] * (LARGEST // 16)]),
    "bytes": json.dumps("x" * (LARGEST - 1)),
    "bytes in jsonb": json.dumps("x" * LARGEST * 6),
    "numbers written out": "[" + ",".join(["1e308"] * 53) + "]",
    "small numbers written out": "[" + ",".join(["5e-300"] * 55) + "]",
    "spaces that Postgres writes": "[" + ",".join(['"abcdef"'] * 1_650) + "]",
}
ENOUGH = {
    "values": "[" + ",".join(["1"] * (LARGEST // 8 - 1)) + "]",
    "commas in a text": json.dumps(",[{" * 5_000),
    "quotes in a text": json.dumps(["\\\"," * 1_000, '"' * 1_000]),
    "numbers written out": "[" + ",".join(["1e308"] * 52) + "]",
    "a long number": "[" + "9" * 1_000 + ", 1e-900, 1e400]",
    "zeros": "[0, 0.0, -0, 0e10, 0.00000000000000000000]",
    "bytes": json.dumps("x" * (LARGEST - 2)),
}


@pytest.mark.parametrize("door", DOORS)
async def test_values_beyond_the_bounds_are_refused_by_all_public_functions(
    bounded: Harness, sql: asyncpg.Connection, door: str
) -> None:
    query, wrapped, field = DOORS[door]

    for case, sent in TOO_MUCH.items():
        assert (case, *await refused(sql, query, wrapped.format(sent))) == (case, "SW004", field)


@pytest.mark.parametrize("door", DOORS)
async def test_a_payload_is_bounded_before_its_values_are_read(
    bounded: Harness, sql: asyncpg.Connection, door: str
) -> None:
    """H3: by its size in jsonb, which costs nothing to read; only short values are checked and written as text."""
    query, wrapped, field = DOORS[door]

    with pytest.raises(asyncpg.PostgresError) as caught:
        await sql.fetch(query, wrapped.format(json.dumps(["x" * LARGEST] * 5)))

    assert (caught.value.sqlstate, caught.value.column_name) == ("SW004", field)
    assert str(caught.value).startswith(f"{field}: more bytes than max_payload ({LARGEST});")


@pytest.mark.parametrize("case", ENOUGH)
async def test_values_within_the_bounds_are_delivered(bounded: Harness, sql: asyncpg.Connection, case: str) -> None:
    await sql.fetch("select stepwell.signal('paid', $1, key => 'a')", ENOUGH[case])
    await sql.fetch("select stepwell.signal_many($1)", DOORS["signal_many"][1].format(ENOUGH[case]))

    rows = await bounded.sql("select payload = $1::text::jsonb as is_it from stepwell.signals", ENOUGH[case])
    assert [row["is_it"] for row in rows] == [True, True]


BATCHES = {
    "start_many": ("entries", '{"machine": "Note"}', "machine"),
    "signal_many": ("signals", '{"key": "a", "name": "b"}', "id"),
}  # fmt: skip
MOST = 10_000  # of one call


@pytest.mark.parametrize("door", BATCHES)
async def test_a_batch_has_at_most_ten_thousand_entries(bounded: Harness, sql: asyncpg.Connection, door: str) -> None:
    """H3: a megabyte of empty entries kept a backend busy for half a second: each had a message made for its
    problem."""
    name, good, field = BATCHES[door]
    query = f"select stepwell.{door}($1)"

    with pytest.raises(asyncpg.PostgresError) as caught:
        await sql.fetch(query, "[" + ",".join(["{}"] * (MOST + 1)) + "]")
    first = await refused(sql, query, "[" + ",".join(["{}"] * MOST) + "]")
    taken = await sql.fetch(query, "[" + ",".join([good] * MOST) + "]")

    assert (caught.value.sqlstate, caught.value.column_name) == ("SW004", name)
    assert str(caught.value) == f"{name}: 10001 are more than 10000, the most of one call; send them in several calls"
    assert first == ("SW001", field)
    assert len(taken) == MOST


@pytest.mark.parametrize("door", BATCHES)
async def test_a_batch_has_bounded_bytes(bounded: Harness, sql: asyncpg.Connection, door: str) -> None:
    """H3: before any entry is read; a batch that Python sends in one call is within the bound."""
    name, good, _ = BATCHES[door]
    query = f"select stepwell.{door}(jsonb_build_array($1::jsonb, jsonb_build_object('other', repeat('x', $2))))"

    assert await refused(sql, query, good, 4 * sql_functions.LARGEST_ARRAY + 2_000) == ("SW004", name)
    assert await refused(sql, query, good, sql_functions.LARGEST_ARRAY) == ("SW001", "other")


@pytest.mark.parametrize("door", ["start_many", "signal_many"])
async def test_a_refusal_repeats_little_of_an_unknown_name(sql: asyncpg.Connection, door: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await sql.fetch(f"select stepwell.{door}($1)", json.dumps([{"x" * 1_000_000: 1}]))

    assert (caught.value.sqlstate, caught.value.column_name) == ("SW001", "x" * 200)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("door", BATCHES)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_batch_is_not_read_beyond_its_first_problem(
    bounded: Harness, sql: asyncpg.Connection, door: str, place: int
) -> None:
    """H3: later entries cost nothing. Calls of the functions that read a payload are counted here."""
    payload = {"start_many": '"state"', "signal_many": '"payload"'}[door]
    good = BATCHES[door][1].removesuffix("}") + f', {payload}: {{"a": 1}}}}'
    entries = [good] * 5
    entries[place] = "{}"
    await sql.execute("set track_functions = 'all'")

    async with sql.transaction():
        before = await calls(sql, "_payload_problem")
        with pytest.raises(asyncpg.PostgresError, match=rf"\(in (entries|signals)\[{place}\]\)"):
            async with sql.transaction():
                await sql.fetch(f"select stepwell.{door}($1)", f"[{','.join(entries)}]")
        looked = await calls(sql, "_payload_problem") - before

    assert looked == place


async def calls(sql: asyncpg.Connection, function: str) -> int:
    """How often this transaction has called a function."""
    return await sql.fetchval("select coalesce(pg_stat_get_xact_function_calls($1::regproc::oid), 0)",
                              f"stepwell.{function}")  # fmt: skip


@pytest.mark.parametrize("field", ["version", "priority", "delay", "weight"])
@pytest.mark.parametrize("number", ["1e131071", "-1e20", "0e-16383", "1e-16383"])
async def test_numbers_of_an_entry_itself_are_bounded(
    bounded: Harness, sql: asyncpg.Connection, field: str, number: str
) -> None:
    entries = f'[{{"machine": "Note"}}, {{"machine": "Note", "{field}": {number}}}]'

    assert await refused(sql, "select stepwell.start_many($1)", entries) == ("SW001", field)


@pytest.mark.parametrize("door", ["cancel", "try_cancel"])
async def test_the_reason_and_actor_of_a_cancel_are_bounded(
    bounded: Harness, sql: asyncpg.Connection, door: str
) -> None:
    """It is stored with each instance of a tree, and max_payload does not hold for it."""
    query = f"select stepwell.{door}(key => 'a', reason => $1, by => $2)"

    assert await refused(sql, query, "x" * 10_001, "ada") == ("SW001", "reason")
    assert await refused(sql, query, "no stock", "x" * 201) == ("SW001", "by")
    assert await sql.fetchval(query, "x" * 10_000, "é" * 200)


UNFIT = '{"number": "seven"}'  # of Order, with a number that is an int


async def test_a_client_that_says_checked_passes_no_check(bounded: Harness) -> None:
    """M1: the size, and that the state has met no type yet, whatever the caller marks."""
    large = json.dumps({"a": "x" * LARGEST})
    async with role(bounded, "client", of="stepwell_client") as url, connected(url) as client:
        for checked in ("true", "false"):
            entry = f'[{{"machine": "Note", "state": {large}, "checked": {checked}}}]'
            signal = f'[{{"key": "a", "name": "paid", "payload": {large}, "checked": {checked}}}]'
            assert await refused(client, "select stepwell.start_many($1)", entry) == ("SW004", "state")
            assert await refused(client, "select stepwell.signal_many($1)", signal) == ("SW004", "payload")
        started = await client.fetchval(
            "select id from stepwell.start_many($1)", f'[{{"machine": "Order", "state": {UNFIT}, "checked": true}}]'
        )

    async with bounded.engine.worker():
        ended = await bounded.engine.wait(started, timeout=20)
    assert (str(ended.status), ended.error and ended.error.type) == ("failed", "InvalidState")


async def test_only_a_role_that_may_write_states_can_mark_them_checked(bounded: Harness) -> None:
    """M1: max_payload holds for a worker's own role too; its states have met their type in Python."""
    entry = f'[{{"machine": "Order", "state": {UNFIT}, "checked": true}}]'
    large = json.dumps([{"machine": "Note", "state": {"a": "x" * LARGEST}, "checked": True}])
    async with role(bounded, "writer", of="stepwell_client") as url, connected(url) as writer:
        by_client = await writer.fetchval("select id from stepwell.start_many($1)", entry)
        await bounded.sql(f"grant insert on stepwell.instance_data to {await writer.fetchval('select current_user')}")
        by_writer = await writer.fetchval("select id from stepwell.start_many($1)", entry)
        await writer.execute("set role stepwell_client")  # the role that is logged in counts
        by_itself = await writer.fetchval("select id from stepwell.start_many($1)", entry)
        assert await refused(writer, "select stepwell.start_many($1)", large) == ("SW004", "state")

    rows = await bounded.sql("select id, unchecked from stepwell.instance_data where id = any ($1)",
                             [by_client, by_writer, by_itself])  # fmt: skip
    assert {row["id"]: row["unchecked"] for row in rows} == {by_client: True, by_writer: False, by_itself: False}
