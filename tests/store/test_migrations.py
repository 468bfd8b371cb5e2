"""Migrations: numbered, applied whole or not at all, from as many hosts as like to, once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from stepwell._core.faults import Contention, Refusal
from stepwell._core.interactions import epoch_ms
from stepwell._core.tokens import TokenFacts, TokenKeys, seal_of
from stepwell._store import clones, database, interactions
from stepwell._store import migrations as migrations_module
from stepwell._store.database import Database
from stepwell._store.migrations import apply, apply_over, current_version, latest_version, migrations, script
from tests.store import questions
from tests.support.dump_schema import dump, dump_of
from tests.support.waiting import eventually

KEYED = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, key, key_scope, status, finished_at)
select 'order', 1, 'ship', 'default', now(), now(), now(), key, scope, status, finished_at
from (values ('lives', 'live', 'runnable', null), ('ended', 'live', 'done', now()),
             ('for ever', 'forever', 'done', now())) as row(key, scope, status, finished_at)
"""
MIGRATES = """
select from pg_stat_activity where datname = current_database() and application_name = 'stepwell'
  and wait_event_type = 'Lock'
"""


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, most=8)
    await database.open()
    yield database
    await database.close()


async def tables(url: str) -> set[str]:
    rows = await clones.query(url, "select tablename from pg_tables where schemaname = 'stepwell'")
    return {row["tablename"] for row in rows}


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(m.sql.startswith("--") for m in migrations()), "a migration says what it is for"


async def test_an_empty_database_has_version_0(empty: Database) -> None:
    assert await current_version(empty) == 0


async def test_migrations_apply_from_nothing(empty: Database) -> None:
    applied = await apply(empty)

    assert applied == list(migrations())
    assert await current_version(empty) == latest_version()


async def test_a_second_time_nothing_is_applied(empty: Database, empty_url: str) -> None:
    """Scenario 170."""
    await apply(empty)
    before = await dump_of(empty_url)

    applied = await apply(empty)

    assert applied == []
    assert await dump_of(empty_url) == before


async def test_eight_at_once_apply_it_once(empty: Database, empty_url: str, url: str) -> None:
    applied = await asyncio.gather(*(apply(empty) for _ in range(8)))

    assert sorted(map(len, applied)) == [0] * 7 + [len(migrations())]
    assert await dump_of(empty_url) == await dump_of(url)


async def test_the_script_run_by_hand_gives_the_same_schema(empty_url: str, url: str) -> None:
    connection = await asyncpg.connect(empty_url)

    await connection.execute(script(0))

    assert await dump(connection) == await dump_of(url)
    await connection.close()


async def test_the_script_of_the_latest_version_changes_nothing(url: str, connection: asyncpg.Connection) -> None:
    before = await dump_of(url)

    await connection.execute(script(latest_version()))

    assert await dump_of(url) == before


async def test_a_migration_that_fails_leaves_nothing_behind(empty: Database, empty_url: str) -> None:
    await clones.query(empty_url, "create schema stepwell")
    await clones.query(empty_url, "create table stepwell.workers (mine integer)")  # made late in the first migration

    with pytest.raises(Refusal, match='relation "workers" already exists'):
        await apply(empty)

    assert await tables(empty_url) == {"workers"}
    assert await current_version(empty) == 0


async def test_after_a_failure_it_applies_once_the_cause_is_gone(empty: Database, empty_url: str) -> None:
    await clones.query(empty_url, "create schema stepwell")
    await clones.query(empty_url, "create table stepwell.workers (mine integer)")
    with pytest.raises(Refusal):
        await apply(empty)

    await clones.query(empty_url, "drop table stepwell.workers")

    assert await apply(empty) == list(migrations())


async def test_a_migration_has_more_time_than_a_statement(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "COMMAND_TIMEOUT", 1.0)
    other = await asyncpg.connect(empty_url)
    await other.execute("select pg_advisory_lock(hashtextextended('stepwell.migrate', 0))")

    async with Database(empty_url) as empty:
        migrating = asyncio.create_task(apply(empty))
        await eventually(lambda: clones.query(empty_url, f"{MIGRATES} and now() - query_start > '1.5 s'"))
        await other.close()

        assert await migrating == list(migrations())


async def test_a_migration_does_not_wait_for_ever_for_somebodys_lock_while_others_wait_behind_it(
    empty: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations_module, "LOCK_PATIENCE", timedelta(seconds=0.1))
    migrate_up_to(empty_url, 13)
    client = await asyncpg.connect(empty_url)

    async with client.transaction():
        await client.execute("select from stepwell.instances")
        with pytest.raises(Contention, match="lock timeout"):
            await apply(empty)

    assert await current_version(empty) == 13
    assert [migration.version for migration in await apply(empty)] == [*range(14, latest_version() + 1)]
    await client.close()


async def test_who_has_locked_a_row_and_writes_it_next_is_not_in_the_way_of_migration_0014(
    empty: Database, empty_url: str
) -> None:
    """Two connections. Without its lock at first it would wait for them, and they for it."""
    migrate_up_to(empty_url, 13)
    await clones.query(empty_url, KEYED)
    client = await asyncpg.connect(empty_url)

    async with client.transaction():
        await client.execute("select from stepwell.instances for no key update")
        migrating = asyncio.create_task(apply(empty))
        await eventually(lambda: clones.query(empty_url, MIGRATES))
        await client.execute("update stepwell.instances set priority = 7")

    assert [migration.version for migration in await migrating] == [*range(14, latest_version() + 1)]
    assert await client.fetchval("select count(*) from stepwell.instances where priority = 7") == 3
    await client.close()


def migrate_up_to(url: str, version: int) -> None:
    """Make the schema as an older Stepwell left it."""
    with psycopg.connect(url) as connection:

        def send(text: str) -> list[Any]:
            cursor = connection.execute(text)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

        apply_over(send, version)


async def test_a_token_that_was_handed_out_before_migration_0012_holds_after_it(
    empty: Database, empty_url: str
) -> None:
    """The question is open all the while, and its next token is handed out under another key."""
    migrate_up_to(empty_url, 11)
    await questions.build(empty_url, 1_000)
    connection = await asyncpg.connect(empty_url)
    asked = await connection.fetchrow(
        "update stepwell.await_units u set requires_token = true from stepwell.interactions q"
        " where q.unit_id = u.id and u.id = 50 returning q.*"
    )
    facts = TokenFacts("", str(asked["id"]), str(asked["correlation"]), 50, "ask", epoch_ms(asked["deadline"]))
    old, fresh = [TokenKeys.read({key: key * 20}).sign(facts) for key in ("old", "fresh")]
    await connection.execute("update stepwell.interactions set seal = sha256($1) where unit_id = 50", old.encode())

    await apply(empty)
    await interactions.seal(empty, str(asked["id"]), seal_of(fresh))

    complete = "select is_duplicate from stepwell.complete('1', token => $1)"
    assert [await connection.fetchval(complete, token) for token in (old, fresh)] == [False, True]
    await connection.close()


async def test_keys_that_were_occupied_before_migration_0014_are_so_after_it(empty: Database, empty_url: str) -> None:
    migrate_up_to(empty_url, 13)
    await clones.query(empty_url, KEYED)

    await apply(empty)

    occupants = await clones.query(
        empty_url,
        "select (select o.id is not null from stepwell._instances_find_occupants(array[''], array[key]) o) as is_taken "
        "from unnest(array['lives', 'ended', 'for ever']) as key",
    )
    assert [row["is_taken"] for row in occupants] == [True, None, True]


@pytest.fixture
async def stranger(server_url: str, empty_url: str) -> AsyncIterator[str]:
    """The URL of a role that may connect and nothing else, to the empty database."""
    role = f"stranger_{secrets.token_hex(4)}"
    await clones.query(server_url, f"create role {role} login")
    connection = await asyncpg.connect(empty_url)
    user = await connection.fetchval("select current_user")
    await connection.close()
    yield empty_url.replace(f"//{user}@", f"//{role}@")
    await clones.query(server_url, f"drop role {role}")


async def rights_after(database: Database, url: str, role: str | None, granted: str, *rights: str) -> list[bool]:
    """Whether a role has rights once all is migrated, that had this one before. It is taken from it again."""
    await clones.query(url, f"grant {granted} to {role}")
    await apply(database)
    connection = await asyncpg.connect(url)
    found = [await connection.fetchval(f"select has_{right.format(role=role)}") for right in rights]
    await connection.execute(f"drop owned by {role}")
    await connection.close()
    return found


async def test_a_workers_own_role_reads_retired_keys_right_after_migration_0012(
    empty: Database, empty_url: str, stranger: str
) -> None:
    """Whoever answers reads them. It has its grants on what was there before."""
    migrate_up_to(empty_url, 11)
    role = urlsplit(stranger).username
    right = "table_privilege('{role}', 'stepwell.retired_token_keys', 'select')"

    assert await rights_after(empty, empty_url, role, "select on stepwell.interactions", right) == [True]


async def test_a_workers_own_role_claims_slots_right_after_migration_0013(
    empty: Database, empty_url: str, stranger: str
) -> None:
    migrate_up_to(empty_url, 12)
    role = urlsplit(stranger).username
    rights = [
        f"function_privilege('{{role}}', 'stepwell.{name}'::regproc, 'execute')"
        for name in ("_claim_slots", "_let_go", "_lock_limits", "_limits_free")
    ]

    granted = "execute on function stepwell._answer_one"
    assert await rights_after(empty, empty_url, role, granted, *rights) == [True] * 4


async def test_a_role_that_may_not_create_is_told_so(stranger: str) -> None:
    database = Database(stranger)
    await database.open()

    with pytest.raises(Refusal, match="permission denied for database"):
        await apply(database)

    await database.close()


async def test_a_role_that_may_not_look_is_told_so_instead_of_version_0(empty: Database, stranger: str) -> None:
    await apply(empty)
    database = Database(stranger)
    await database.open()

    with pytest.raises(Refusal, match="permission denied for schema stepwell"):
        await current_version(database)

    await database.close()
