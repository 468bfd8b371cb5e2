"""What the database itself refuses, from any client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.store.plans import rolled_back

STATUSES = {
    "runnable": {},
    "executing": {"worker_id": 1},
    "awaiting_signal": {"awaits": ["paid"]},
    "awaiting_children": {},
    "awaiting_external": {},
    "done": {"finished_at": "now"},
    "failed": {"finished_at": "now"},
    "cancelled": {"finished_at": "now"},
}  # what a row of each status needs besides
TERMINAL = ("done", "failed", "cancelled")
TESTS = "".join(Path(__file__).with_name(f"test_{name}invariants.py").read_text() for name in ("", "interaction_"))


@pytest.fixture
async def connection(shared_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection inside a transaction that is rolled back."""
    opened = await asyncpg.connect(shared_url)
    async with rolled_back(opened):
        yield opened
    await opened.close()


async def send(connection: asyncpg.Connection, sql: str, *args: object) -> Any:
    """Send a statement; its failure leaves the transaction usable."""
    async with connection.transaction():
        return await connection.fetchval(sql, *args)


async def insert(connection: asyncpg.Connection, **columns: Any) -> int:
    """Insert a row that differs from a simple runnable one in the given columns."""
    values = {"machine": "order", "version": 1, "step": "ship", "queue": "default", **columns}
    moments = [name for name, value in values.items() if value == "now"]
    given = [name for name in values if name not in moments]
    now = ["due_at", "created_at", "updated_at", *moments]
    sql = (
        f"insert into stepwell.instances ({', '.join(given + now)}) "
        f"values ({', '.join(f'${i + 1}' for i in range(len(given)))}, {', '.join(['now()'] * len(now))}) returning id"
    )
    return int(await send(connection, sql, *(values[name] for name in given)))


async def expect_refused(connection: asyncpg.Connection, constraint: str, **columns: Any) -> None:
    """Assert that exactly this constraint refuses the row."""
    with pytest.raises(asyncpg.IntegrityConstraintViolationError) as caught:
        await insert(connection, **columns)
    assert caught.value.constraint_name == constraint


@pytest.mark.parametrize("status", STATUSES)
async def test_a_row_of_each_status_is_accepted(connection: asyncpg.Connection, status: str) -> None:
    assert await insert(connection, status=status, **STATUSES[status])


async def test_an_unknown_status_is_refused(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "status_known", status="sleeping")


async def test_an_unknown_hold_is_refused(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "hold_known", hold="whim")


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "runnable"])
async def test_only_a_runnable_row_is_held(connection: asyncpg.Connection, status: str) -> None:
    await expect_refused(connection, "only_runnable_is_held", status=status, hold="due", **STATUSES[status])


async def test_an_executing_row_has_a_worker(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "executing_has_worker", status="executing")


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "executing"])
async def test_no_other_row_has_a_worker(connection: asyncpg.Connection, status: str) -> None:
    await expect_refused(connection, "executing_has_worker", status=status, **{**STATUSES[status], "worker_id": 1})


@pytest.mark.parametrize("status", TERMINAL)
async def test_an_ended_row_has_an_end(connection: asyncpg.Connection, status: str) -> None:
    await expect_refused(connection, "finished_has_end", status=status)


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in TERMINAL])
async def test_a_live_row_has_no_end(connection: asyncpg.Connection, status: str) -> None:
    await expect_refused(connection, "finished_has_end", status=status, **{**STATUSES[status], "finished_at": "now"})


async def test_a_row_that_awaits_a_signal_names_it(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "awaiting_signal_has_names", status="awaiting_signal")


@pytest.mark.parametrize("scope", [None, "sometimes"])
async def test_a_key_has_a_known_scope(connection: asyncpg.Connection, scope: str | None) -> None:
    await expect_refused(connection, "key_has_scope", key="order 1", key_scope=scope)


async def test_a_scope_has_a_key(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "key_has_scope", key_scope="live")


async def test_the_number_of_children_is_never_negative(connection: asyncpg.Connection) -> None:
    await expect_refused(connection, "children_not_negative", children_pending=-1)


async def test_a_concurrency_key_executes_once(connection: asyncpg.Connection) -> None:
    """Scenario 89."""
    await insert(connection, status="executing", worker_id=1, concurrency_key="account 7")

    await expect_refused(
        connection, "instances_concurrency_key", status="executing", worker_id=2, concurrency_key="account 7"
    )


async def test_a_concurrency_key_is_shared_by_waiting_rows(connection: asyncpg.Connection) -> None:
    await insert(connection, status="executing", worker_id=1, concurrency_key="account 7")

    assert await insert(connection, concurrency_key="account 7")
    assert await insert(connection, concurrency_key="account 7", hold="key")


async def test_a_slot_of_a_limit_is_held_by_one_row(connection: asyncpg.Connection) -> None:
    await insert(connection, status="executing", worker_id=1, concurrency_limit="stripe", slot=1)

    await expect_refused(
        connection, "instances_slot", status="executing", worker_id=2, concurrency_limit="stripe", slot=1
    )
    assert await insert(connection, status="executing", worker_id=2, concurrency_limit="stripe", slot=2)
    assert await insert(connection, status="executing", worker_id=2, concurrency_limit="stripe:7", slot=1)


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "executing"])
async def test_only_an_executing_row_has_a_slot(connection: asyncpg.Connection, status: str) -> None:
    await expect_refused(connection, "only_executing_has_slot", status=status, slot=1, **STATUSES[status])


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("kind_known", "('daily', 'x', 1, null, null, '{}')"),
        ("rate_has_bucket", "('rate', 'x', 1, null, null, '{}')"),
        ("rate_has_bucket", "('concurrency', 'x', 1, interval '1 second', 1, '{}')"),
        ("numbers_make_sense", "('concurrency', 'x', -1, null, null, '{}')"),
        ("numbers_make_sense", "('rate', 'x', 1, interval '0', 1, '{}')"),
        ("numbers_make_sense", "('rate', 'x', 0, interval '1 second', 1, '{}')"),
    ],
)
async def test_an_impossible_limit_is_refused(
    connection: asyncpg.Connection, constraint: str, values: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await send(connection, f"insert into stepwell.limits (kind, name, n, per, burst, declared) values {values}")
    assert caught.value.constraint_name == constraint


async def test_a_name_has_one_limit_of_a_kind_and_one_bucket(connection: asyncpg.Connection) -> None:
    add = "insert into stepwell.limits (kind, name, n, declared) values ('concurrency', 'x', 1, '{}')"
    fill = "insert into stepwell.buckets (key, tokens, refilled_at) values ('x', 1, now())"
    await send(connection, add)
    await send(connection, fill)

    with pytest.raises(asyncpg.UniqueViolationError) as twice:
        await send(connection, add)
    assert twice.value.constraint_name == "limits_pkey"
    with pytest.raises(asyncpg.UniqueViolationError) as again:
        await send(connection, fill)
    assert again.value.constraint_name == "buckets_pkey"


async def test_a_bucket_never_owes_tokens(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await send(connection, "insert into stepwell.buckets (key, tokens, refilled_at) values ('x', -0.1, now())")
    assert caught.value.constraint_name == "tokens_not_negative"


@pytest.mark.parametrize("scope", ["live", "forever"])
async def test_a_key_is_occupied_once_per_tenant(connection: asyncpg.Connection, scope: str) -> None:
    await insert(connection, tenant="a", key="order 1", key_scope=scope)

    await expect_refused(connection, "instances_guard", tenant="a", key="order 1", key_scope="live")
    assert await insert(connection, tenant="b", key="order 1", key_scope=scope)


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_live_key_is_free_when_its_instance_has_ended(connection: asyncpg.Connection, status: str) -> None:
    await insert(connection, key="order 1", key_scope="live", status=status, finished_at="now")

    assert await insert(connection, key="order 1", key_scope="live")


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_forever_key_is_never_free_again(connection: asyncpg.Connection, status: str) -> None:
    await insert(connection, key="order 1", key_scope="forever", status=status, finished_at="now")

    await expect_refused(connection, "instances_guard", key="order 1", key_scope="live")


async def test_an_id_names_one_instance_and_one_state(connection: asyncpg.Connection) -> None:
    taken = await insert(connection)
    await send(connection, "insert into stepwell.instance_data (id, state) values ($1, '{}')", taken)
    await send(connection, f"alter sequence stepwell.instances_id_seq restart with {taken}")

    with pytest.raises(asyncpg.UniqueViolationError, match="instances_pkey"):
        await insert(connection)
    with pytest.raises(asyncpg.UniqueViolationError, match="instance_data_pkey"):
        await send(connection, "insert into stepwell.instance_data (id, state) values ($1, '{}')", taken)


async def add_signal(connection: asyncpg.Connection, instance: int, dedup_key: str | None) -> int:
    sql = (
        "insert into stepwell.signals (instance_id, sent_at, name, dedup_key) values ($1, now(), 'paid', $2) "
        "returning id"
    )
    return int(await send(connection, sql, instance, dedup_key))


async def test_an_event_is_in_an_inbox_once(connection: asyncpg.Connection) -> None:
    await add_signal(connection, 1, "event 1")

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await add_signal(connection, 1, "event 1")
    assert caught.value.constraint_name == "signals_dedup"
    assert await add_signal(connection, 2, "event 1")


async def test_an_event_that_was_consumed_is_not_accepted_again(connection: asyncpg.Connection) -> None:
    first = await add_signal(connection, 1, "event 1")
    await send(connection, "update stepwell.signals set consumed = true, payload = null where id = $1", first)

    with pytest.raises(asyncpg.UniqueViolationError, match="signals_dedup"):
        await add_signal(connection, 1, "event 1")


async def test_signals_without_a_dedup_key_are_all_accepted(connection: asyncpg.Connection) -> None:
    assert await add_signal(connection, 1, None) < await add_signal(connection, 1, None)


async def test_an_id_names_one_signal(connection: asyncpg.Connection) -> None:
    taken = await add_signal(connection, 1, None)
    await send(connection, f"alter sequence stepwell.signals_id_seq restart with {taken}")

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await add_signal(connection, 1, None)
    assert caught.value.constraint_name == "signals_pkey"


async def test_a_key_has_one_tombstone_per_tenant(connection: asyncpg.Connection) -> None:
    bury = "insert into stepwell.tombstones (tenant, key, instance_id, buried_at) values ($1, $2, $3, now())"
    await send(connection, bury, "a", "order 1", 1)
    await send(connection, bury, "b", "order 1", 2)

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await send(connection, bury, "a", "order 1", 3)
    assert caught.value.constraint_name == "tombstones_pkey"


async def test_a_key_of_tokens_is_retired_once(connection: asyncpg.Connection) -> None:
    retire = "insert into stepwell.retired_token_keys values ('2026-10')"
    await connection.execute(retire)

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await connection.execute(retire)

    assert caught.value.constraint_name == "retired_token_keys_pkey"


async def test_a_unit_is_cleaned_up_once(connection: asyncpg.Connection) -> None:
    add = "insert into stepwell.cleanups (unit_id) values (1)"
    await connection.execute(add)

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await connection.execute(add)

    assert caught.value.constraint_name == "cleanups_pkey"


async def test_a_machine_has_one_active_version(connection: asyncpg.Connection) -> None:
    add = (
        "insert into stepwell.machines (name, version, initial, queue, steps, active) "
        "values ($1, $2, 's', 'q', '{s}', $3)"
    )
    await send(connection, add, "order", 1, True)
    await send(connection, add, "order", 2, False)

    with pytest.raises(asyncpg.UniqueViolationError, match="machines_active"):
        await send(connection, add, "order", 3, True)
    with pytest.raises(asyncpg.UniqueViolationError, match="machines_pkey"):
        await send(connection, add, "order", 2, False)


async def test_a_queue_is_stored_once_and_only_if_valid(connection: asyncpg.Connection) -> None:
    add = "insert into stepwell.queues (name, paused_at, reason, fair_by, changed_at) values ($1, $2, $3, $4, now())"
    await send(connection, add, "mail", None, None, "tenant")

    with pytest.raises(asyncpg.UniqueViolationError, match="queues_pkey"):
        await send(connection, add, "mail", None, None, None)
    with pytest.raises(asyncpg.CheckViolationError, match="pause_has_time"):
        await send(connection, add, "paused", None, "since when?", None)
    with pytest.raises(asyncpg.CheckViolationError, match="fair_by_known"):
        await send(connection, add, "odd", None, None, "moon")


async def test_the_schema_has_one_version(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.UniqueViolationError, match="meta_pkey"):
        await send(connection, "insert into stepwell.meta (version, oldest_code) values (2, 2)")
    with pytest.raises(asyncpg.CheckViolationError, match="meta_singleton_check"):
        await send(connection, "insert into stepwell.meta (singleton, version, oldest_code) values (false, 2, 2)")


async def test_a_lock_has_one_row(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.UniqueViolationError, match="locks_pkey"):
        await send(connection, "insert into stepwell.locks values (1)")


async def test_every_constraint_and_unique_index_has_its_test(connection: asyncpg.Connection) -> None:
    rows = await connection.fetch(
        "select conname as name from pg_constraint where connamespace = 'stepwell'::regnamespace and contype = 'c' "
        "union select indexrelid::regclass::text from pg_index join pg_class on pg_class.oid = indrelid "
        "where indisunique and relnamespace = 'stepwell'::regnamespace"
    )

    names = {row["name"].removeprefix("stepwell.") for row in rows} - {"workers_pkey"}

    assert {name for name in names if f'"{name}"' not in TESTS} == set()
