"""A member of stepwell_client can use the public functions and nothing else, whatever it tries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepwell import Engine
from stepwell._client.admin import schema
from stepwell._store import migrate
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.sql_and_drivers.machines import Busy, Note, Order
from tests.surfaces.sql_and_drivers.roles import connected, role

DOORS = {"start", "start_many", "signal", "signal_many", "cancel", "try_cancel", "complete"}
DENIED = asyncpg.InsufficientPrivilegeError


@pytest.fixture
async def client(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    """A member of stepwell_client, which may make tables of its own in a schema of its own."""
    async with role(h, "client", of="stepwell_client") as url, connected(url) as connection:
        await h.sql(f"create schema own authorization {urlsplit(url).username}")
        yield connection


async def denied(client: asyncpg.Connection, statement: str) -> bool:
    """Whether the server refuses it for lack of rights; its effect is rolled back."""
    transaction = client.transaction()
    await transaction.start()
    try:
        await client.execute(statement)
    except DENIED:
        return True
    finally:
        await transaction.rollback()
    return False


async def test_the_client_role_can_call_every_public_function(h: Harness, client: asyncpg.Connection) -> None:
    started = await client.fetchval("select stepwell.start('Order', '{\"number\": 7}', key => 'order:7')")
    many = await client.fetch("select * from stepwell.start_many('[{\"machine\": \"Note\"}]')")
    reached = await client.fetchval("select stepwell.signal('paid', '1', key => 'order:7')")
    signalled = await client.fetchval("select id from stepwell.signal_many($1)",
                                      f'[{{"id": {started}, "name": "paid"}}]')  # fmt: skip
    cancelled = await client.fetchval("select stepwell.cancel(key => 'order:7')")
    ended = await client.fetchval("select stepwell.try_cancel(id => $1)", many[0]["id"])

    assert reached == signalled == started
    assert (cancelled, ended) == (True, True)
    assert (await h.engine.get("order:7")).status == "cancelled"


async def test_the_client_role_can_neither_read_nor_write_a_table_or_sequence(
    h: Harness, client: asyncpg.Connection
) -> None:
    relations = await h.sql(
        "select relname as name, relkind::text as kind from pg_class"
        " where relnamespace = 'stepwell'::regnamespace and relkind not in ('i', 'c')"
    )
    tries = []
    for row in relations:
        name = f"stepwell.{row['name']}"
        if row["kind"] == "S":
            tries += [f"select nextval('{name}')", f"select setval('{name}', 1)", f"select last_value from {name}"]
        else:
            tries += [f"select from {name}", f"insert into {name} default values", f"delete from {name}",
                      f"update {name} set {await _a_column(h, row['name'])} = null", f"truncate {name}",
                      f"lock table {name}", f"copy (select from {name}) to stdout", f"drop table {name}",
                      f"alter table {name} add column x integer", f"create index on {name} ((1))",
                      f"create rule r as on insert to {name} do nothing"]  # fmt: skip

    assert len(tries) > 80
    assert [statement for statement in tries if not await denied(client, statement)] == []


async def _a_column(h: Harness, table: str) -> str:
    [row] = await h.sql(
        "select attname from pg_attribute where attrelid = ('stepwell.' || $1)::regclass "
        " and attnum > 0 and attidentity = '' and attgenerated = '' limit 1", table
    )
    return str(row["attname"])


async def test_the_client_role_can_execute_public_functions_and_no_others(
    h: Harness, client: asyncpg.Connection
) -> None:
    functions = await h.sql(
        "select proname as name, oid::regprocedure::text as signature, pronargs as number,"
        " array(select format_type(t, null) from unnest(proargtypes) t) as types"
        " from pg_proc where pronamespace = 'stepwell'::regnamespace"
    )

    others = [row for row in functions if row["name"] not in DOORS]
    allowed = [row["signature"] for row in others if not await denied(
        client, f"select stepwell.{row['name']}({', '.join(f'null::{t}' for t in row['types'])})")]  # fmt: skip

    assert {row["name"] for row in functions} >= DOORS
    assert len(others) > 10
    assert allowed == []


async def test_public_has_no_rights_at_all(h: Harness) -> None:
    rights = await h.sql(
        "select p.proname as name from pg_proc p,"
        " aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " where p.pronamespace = 'stepwell'::regnamespace and a.grantee = 0"
        " union all select c.relname from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = 'stepwell'::regnamespace and a.grantee = 0"
        " union all select t.typname from pg_type t, aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a"
        " where t.typnamespace = 'stepwell'::regnamespace and a.grantee = 0 and t.typcategory <> 'A'"
        " union all select n.nspname from pg_namespace n, aclexplode(n.nspacl) a"
        " where n.nspname = 'stepwell' and a.grantee = 0"
    )

    assert [row["name"] for row in rights] == []


async def test_a_role_without_grants_cannot_use_the_schema(h: Harness) -> None:
    async with role(h, "stranger") as url, connected(url) as stranger:
        for statement in ("select stepwell.start('Note')", "select stepwell.now()", "select from stepwell.instances"):
            with pytest.raises(DENIED, match="schema stepwell"):
                await stranger.execute(statement)


INTRUSIONS = (
    "create table stepwell.mine (id integer)",
    "create function stepwell.mine() returns integer language sql return 1",
    "create type stepwell.mine as (id integer)",
    "create or replace function stepwell.start(machine text) returns bigint language sql return 1",
    "create table own.mine (id integer, row_of_yours stepwell.instances)",
    "alter function stepwell.start_many(jsonb, boolean) security invoker",
    "drop schema stepwell cascade",
)


async def test_the_client_role_can_create_nothing_in_the_schema(client: asyncpg.Connection) -> None:
    assert [statement for statement in INTRUSIONS if not await denied(client, statement)] == []


TRAPS = """
create function own.steal() returns text language plpgsql as $$ begin raise 'run by %', current_user; end $$;
create function own.left(text, integer) returns text language sql as 'select own.steal()';
create function own.format(text, variadic text[]) returns text language sql as 'select own.steal()';
create function own.cardinality(text[]) returns integer language sql as 'select own.steal(); select 1';
create function own.equal(text, text) returns boolean language sql as 'select own.steal() is null';
create operator own.= (leftarg = text, rightarg = text, function = own.equal);
create operator own.~ (leftarg = text, rightarg = text, function = own.equal);
create type own.jsonb as (x integer);
create domain own.text as pg_catalog.text check (own.steal() is not null);
create temp table meta as select 0::bigint as max_payload;
create temp table machines as select 'Forged' as name, 1 as version, 'start' as initial, 'default' as queue,
  array['start'] as steps, true as active, interval '1 day' as retention;
create temp table instances (id bigint);
create temp table pg_class (id bigint);
set search_path = pg_temp, own, stepwell, pg_catalog;
"""


async def test_no_public_function_uses_the_callers_search_path(
    h: Harness, client: asyncpg.Connection
) -> None:
    await client.execute(TRAPS)

    started = await client.fetchval("select stepwell.start('Order'::pg_catalog.text, key => 'k'::pg_catalog.text)")
    await client.fetchval("select stepwell.signal('paid'::pg_catalog.text, id => $1)", started)
    await client.fetchval("select stepwell.start_many('[{\"machine\": \"Note\", \"at\": \"2030-01-01T00:00Z\"}]')")
    await client.fetchval("select stepwell.signal_many('[{\"key\": \"k\", \"name\": \"n\"}]')")
    with pytest.raises(asyncpg.PostgresError, match="not known") as forged:
        await client.fetchval("select stepwell.start('Forged'::pg_catalog.text)")
    await client.fetchval("select stepwell.cancel(id => $1)", started)

    assert forged.value.sqlstate == "SW002"
    assert (await h.engine.get(started)).status == "cancelled"


async def test_without_the_fixed_path_the_callers_functions_would_run_as_the_owner(
    h: Harness, client: asyncpg.Connection
) -> None:
    await h.sql("alter function stepwell.start reset search_path")
    await client.execute(TRAPS)

    [owner] = await h.sql("select current_user as name")
    with pytest.raises(asyncpg.RaiseError, match=f"run by {owner['name']}"):
        await client.fetchval("select stepwell.start('Order'::pg_catalog.text)")


SETTINGS = (
    "standard_conforming_strings = off", "array_nulls = off", "transform_null_equals = on", "datestyle = 'SQL, DMY'",
    "intervalstyle = 'sql_standard'", "timezone = 'Europe/Amsterdam'", "plan_cache_mode = force_custom_plan",
    "enable_indexscan = off", "work_mem = '64kB'", "plpgsql.variable_conflict = 'error'", "stepwell.anything = 'on'",
)  # fmt: skip


async def test_no_setting_of_the_callers_session_changes_a_public_function(
    h: Harness, client: asyncpg.Connection
) -> None:
    for number, setting in enumerate(SETTINGS):
        await client.execute("reset all")
        try:
            await client.execute(f"set {setting}")
        except (DENIED, asyncpg.UndefinedObjectError, asyncpg.FeatureNotSupportedError):
            continue  # not for this role, or not in this version of Postgres: even better

        started = await client.fetchval(
            "select stepwell.start('Order', '{\"number\": 7}', key => $1, at => '1900-01-01 00:00+00')", f"a{number}"
        )
        many = await client.fetch(
            "select * from stepwell.start_many($1)",
            f'[{{"machine": "Note", "key": "b{number}", "at": "2030-01-02T03:04:05Z"}}, {{"machine": "Note"}}]',
        )
        reached = await client.fetchval("select stepwell.signal('paid', '[null]', key => $1)", f"a{number}")
        due = await h.sql("select due_at at time zone 'UTC' as at from stepwell.instances where key = $1", f"b{number}")

        assert (setting, reached, len(many)) == (setting, started, 2)
        assert (await h.engine.get(f"a{number}")).state == {"number": 7}
        assert due[0]["at"].isoformat() == "2030-01-02T03:04:05"


async def test_no_function_reads_a_setting_that_a_session_may_invent(h: Harness) -> None:
    rows = await h.sql(
        "select proname from pg_proc where pronamespace = 'stepwell'::regnamespace and prosrc ~ 'current_setting'"
    )

    assert [row["proname"] for row in rows] == ["_check_isolation"]


async def test_every_public_function_runs_as_its_owner_on_a_fixed_path(h: Harness) -> None:
    """The temporary schema is the last one of the path."""
    rows = await h.sql(
        "select proname as name, proconfig as settings from pg_proc"
        " where pronamespace = 'stepwell'::regnamespace and prosecdef"
    )

    assert {row["name"] for row in rows} == DOORS
    assert all("search_path=pg_catalog, pg_temp" in row["settings"] for row in rows)


FORGED = ("stepwell_revoked, '{} 999'", "stepwell_revoked, '{} x'", "stepwell_revoked, '²'", "stepwell_settled, '²'",
          "stepwell_work, 'nowhere'", f"stepwell_revoked, '{'9' * 5000} 1'")  # fmt: skip


async def test_a_forged_notification_stops_no_step(h: Harness, client: asyncpg.Connection) -> None:
    """Postgres has no right to NOTIFY that could be revoked; so a worker checks the row before it acts on a
    notification."""
    busy, cancelled = await h.engine.start(Busy), await h.engine.start(Busy)

    async with h.engine.worker(drain_timeout=timedelta(0)) as worker:
        await eventually(lambda: is_executing(h, 2))
        for forged in FORGED:
            await client.execute(f"notify {forged.format(busy.id)}")
        await client.execute("select stepwell.cancel(id => $1)", cancelled.id)  # received after those
        await eventually(lambda: worker.running < 2)

        assert worker._graph.active_claims.ids() == {busy.id}
    assert (await busy.get()).fence == 1


async def is_executing(h: Harness, count: int) -> bool:
    rows = await h.sql("select from stepwell.instances where status = 'executing'")
    return len(rows) == count


async def test_databases_that_migrate_at_the_same_time_make_the_role_once(make_harness: MakeHarness) -> None:
    first, second = await make_harness(), await make_harness()
    name, grants = renamed_grants(first)
    async with connected(first.url) as one, connected(second.url) as other:
        ahead = one.transaction()
        await ahead.start()
        await one.execute(grants)

        behind = asyncio.create_task(other.execute(grants))
        await eventually(lambda: first.sql("select from pg_locks where pid = $1 and not granted",
                                           other.get_server_pid()))  # fmt: skip
        await ahead.commit()
        await behind

        for connection in (one, other):
            assert await connection.fetchval("select has_schema_privilege($1, 'stepwell', 'usage')", name)
            await connection.execute(f"drop owned by {name}")
        await one.execute(f"drop role {name}")


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "there"])
async def test_an_owner_that_may_not_create_roles_migrates_and_is_told_what_to_do(
    h: Harness, caplog: pytest.LogCaptureFixture, is_missing: bool
) -> None:
    await h.sql("drop schema stepwell cascade")
    name = f"{database_of(h)}_renamed" if is_missing else "stepwell_client"
    async with role(h, "owner") as url:
        await h.sql(f"grant create on database {database_of(h)} to {urlsplit(url).username}")

        await Engine(url, machines=[Order, Note]).migrate(client_role=name)
        may_start = await h.sql(
            "select has_function_privilege('stepwell_client', 'stepwell.start_many(jsonb, boolean)', 'execute') as may"
        )
        async with connected(url) as owner:
            started = await owner.fetchval("select stepwell.start('Order')")

    assert started == 1
    assert may_start[0]["may"] is not is_missing
    assert (f"create role {name} nologin" in caplog.text) is is_missing


def test_the_printed_sql_has_the_grants() -> None:
    assert migrate.grants() in schema.sql(0)
    assert migrate.grants() in schema.sql(migrate.latest_version())


def renamed_grants(h: Harness) -> tuple[str, str]:
    """The grants for a role of this test's own: other tests need the real one."""
    name = f"{database_of(h)}_renamed"
    return name, migrate.grants(name)


def database_of(h: Harness) -> str:
    return urlsplit(h.url).path.strip("/")
