"""Migrations: numbered, applied whole or not at all, concurrently from any number of hosts, once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from stepwell._core.store_errors import Contention, Outage
from stepwell._store import migrate as migrations_module
from stepwell._store.connection.pool import Database
from stepwell._store.connection.settings import Bounds
from stepwell._store.migrate import (
    Stamp,
    apply,
    apply_over,
    current_stamp,
    current_version,
    latest_version,
    migrations,
    oldest_code,
    read,
    script,
)
from stepwell._store.testing import databases
from tests.support.dump_schema import dump, dump_of
from tests.support.later_release import later_release
from tests.support.waiting import eventually

MIGRATES = """
select from pg_stat_activity where datname = current_database() and application_name = 'stepwell'
  and wait_event_type = 'Lock'
"""


@pytest.fixture
def url(new_url: str) -> str:
    """One that was used has another definition of the clock."""
    return new_url


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, most=8)
    await database.open()
    yield database
    await database.close()


async def tables(url: str) -> set[str]:
    rows = await databases.query(url, "select tablename from pg_tables where schemaname = 'stepwell'")
    return {row["tablename"] for row in rows}


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(m.sql.startswith("--") for m in migrations()), "a migration says what it is for"


@pytest.mark.parametrize(
    ("head", "is_compatible"), [("-- Compatible: yes", True), ("-- Compatible: no", False)]
)
def test_a_migration_states_whether_it_is_compatible(head: str, is_compatible: bool) -> None:
    assert read(2, "more", f"{head}\n-- What for.\n").is_compatible is is_compatible


@pytest.mark.parametrize("head", ["-- More.", "-- Compatible: perhaps", "-- More.\n-- Compatible: yes"])
def test_a_migration_that_does_not_state_its_compatibility_is_an_error(head: str) -> None:
    with pytest.raises(ValueError, match="line 1 must be '-- Compatible: yes' or"):
        read(2, "more", f"{head}\n")


def test_the_first_schema_accepts_no_older_code() -> None:
    assert (latest_version(), oldest_code(latest_version())) == (1, 1)


@pytest.mark.parametrize(("compatible", "expected"), [(True, Stamp(2, 1)), (False, Stamp(2, 2))])
async def test_every_way_to_migrate_stamps_both_numbers(
    empty: Database, empty_url: str, compatible: bool, expected: Stamp
) -> None:
    stamps = [await current_stamp(empty)]

    with later_release(compatible=compatible):
        for act in (apply_all, migrate_in_two, run_script):
            await act(empty_url)
            stamps.append(await current_stamp(empty))
            await databases.query(empty_url, "drop schema stepwell cascade")

    assert stamps == [Stamp(0, 0), *[expected] * 3]


async def apply_all(url: str) -> None:
    async with Database(url) as database:
        await apply(database)


async def migrate_in_two(url: str) -> None:
    """As Django does, the first time with an older release."""
    migrate_up_to(url, 1)
    async with Database(url) as database:
        assert await current_stamp(database) == Stamp(1, 1)
    migrate_up_to(url, latest_version())


async def run_script(url: str) -> None:
    migrate_up_to(url, 1)
    connection = await asyncpg.connect(url)
    await connection.execute(script(1))
    await connection.close()


async def test_an_empty_database_has_version_0(empty: Database) -> None:
    assert await current_version(empty) == 0


async def test_migrations_apply_from_nothing(empty: Database) -> None:
    applied = await apply(empty)

    assert applied == list(migrations())
    assert await current_version(empty) == latest_version()


async def test_a_second_migrate_applies_nothing(empty: Database, empty_url: str) -> None:
    """Scenario 170."""
    await apply(empty)
    before = await dump_of(empty_url)

    applied = await apply(empty)

    assert applied == []
    assert await dump_of(empty_url) == before


async def test_eight_concurrent_migrates_apply_each_migration_once(empty: Database, empty_url: str, url: str) -> None:
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
    await databases.query(empty_url, "create schema stepwell")
    await databases.query(empty_url, "create table stepwell.workers (mine integer)")  # made late in the first migration

    with pytest.raises(Outage, match='relation "workers" already exists'):
        await apply(empty)

    assert await tables(empty_url) == {"workers"}
    assert await current_version(empty) == 0


async def test_a_migration_applies_once_the_cause_of_its_failure_is_gone(empty: Database, empty_url: str) -> None:
    await databases.query(empty_url, "create schema stepwell")
    await databases.query(empty_url, "create table stepwell.workers (mine integer)")
    with pytest.raises(Outage):
        await apply(empty)

    await databases.query(empty_url, "drop table stepwell.workers")

    assert await apply(empty) == list(migrations())


async def test_a_migration_has_more_time_than_a_statement(empty_url: str) -> None:
    other = await asyncpg.connect(empty_url)
    await other.execute("begin; create schema stepwell")

    async with Database(empty_url, bounds=Bounds(answer=1.0)) as empty:
        migrating = asyncio.create_task(apply(empty))
        await eventually(lambda: databases.query(empty_url, f"{MIGRATES} and now() - query_start > '1.5 s'"))
        await other.close()

        assert await migrating == list(migrations())


async def test_a_migration_does_not_wait_for_a_lock_for_ever(
    empty: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_up_to(empty_url, 1)
    monkeypatch.setattr(migrations_module, "LOCK_PATIENCE", timedelta(seconds=0.1))
    client = await asyncpg.connect(empty_url)

    with later_release():
        async with client.transaction():
            await client.execute("select from stepwell.instances")
            with pytest.raises(Contention, match="lock timeout"):
                await apply(empty)
        before = await current_version(empty)
        applied = await apply(empty)

    assert (before, [migration.version for migration in applied]) == (1, [2])
    await client.close()


def migrate_up_to(url: str, version: int) -> None:
    """Make the schema as an older Stepwell left it."""
    with psycopg.connect(url) as connection:

        def send(text: str) -> list[Any]:
            cursor = connection.execute(text)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

        apply_over(send, version)


async def test_each_database_has_a_secret_of_its_own_that_stays(empty: Database, empty_url: str) -> None:
    secrets_ = []
    for _ in range(2):
        await apply(empty)
        await apply(empty)
        [row] = await databases.query(empty_url, "select secret from stepwell.meta")
        secrets_.append(row["secret"])
        await databases.query(empty_url, "drop schema stepwell cascade")

    assert [len(secret) for secret in secrets_] == [32, 32]
    assert secrets_[0] != secrets_[1]


@pytest.fixture
async def stranger(server_url: str, empty_url: str) -> AsyncIterator[str]:
    """The URL of a role that may only connect, to the empty database."""
    role = f"stranger_{secrets.token_hex(4)}"
    await databases.query(server_url, f"create role {role} login")
    connection = await asyncpg.connect(empty_url)
    user = await connection.fetchval("select current_user")
    await connection.close()
    yield empty_url.replace(f"//{user}@", f"//{role}@")
    await databases.query(server_url, f"drop role {role}")


async def test_a_role_that_may_not_create_gets_an_error_that_says_so(stranger: str) -> None:
    database = Database(stranger)
    await database.open()

    with pytest.raises(Outage, match="permission denied for database"):
        await apply(database)

    await database.close()


async def test_a_role_that_may_not_read_gets_an_error_instead_of_version_0(empty: Database, stranger: str) -> None:
    await apply(empty)
    database = Database(stranger)
    await database.open()

    with pytest.raises(Outage, match="permission denied for schema stepwell"):
        await current_version(database)

    await database.close()
