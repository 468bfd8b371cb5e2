"""Django's migrations correspond to Stepwell's one for one, and accept a database in any state."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from stepwell import Engine
from stepwell._store.migrate import latest_version, migrations
from stepwell._store.testing import databases
from stepwell.contrib.django import make_engine
from stepwell.contrib.django.tasks.results import read_instance
from tests.support.dump_schema import dump_of
from tests.support.later_release import later_release
from tests.support.shared_database import in_own_loop


@pytest.fixture
def other(project: str, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database that the project has under the alias `other`, and where Stepwell's schema is to be."""
    entry = {**connections.settings["default"], "NAME": urlsplit(empty_url).path[1:]}
    monkeypatch.setitem(connections.settings, "other", entry)
    with override_settings(STEPWELL={**settings.STEPWELL, "DATABASE": "other"}):
        yield empty_url
    connections["other"].close()
    del connections["other"]


async def version(url: str) -> int:
    rows = await databases.query(url, "select version from stepwell.meta")
    return int(rows[0]["version"])


async def known_machines(url: str) -> set[str]:
    return {row["name"] for row in await databases.query(url, "select name from stepwell.machines")}


def test_every_migration_of_stepwell_has_a_django_one_of_the_same_name(project: str) -> None:
    loader = MigrationLoader(connections["default"])

    ours = sorted(name for app, name in loader.disk_migrations if app == "stepwell")

    assert ours == [f"{migration.version:04}_{migration.name}" for migration in migrations()]


def test_django_migrations_follow_one_another_each_with_its_own_version(project: str) -> None:
    loader = MigrationLoader(connections["default"])
    names = [f"{migration.version:04}_{migration.name}" for migration in migrations()]

    found = [loader.disk_migrations["stepwell", name] for name in names]

    before = [[], *([("stepwell", name)] for name in names[:-1])]
    assert [migration.dependencies for migration in found] == before
    assert [migration.operations[0].code.keywords["version"] for migration in found] == list(range(1, len(names) + 1))


def test_makemigrations_finds_nothing_to_do(project: str) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


async def test_migrate_makes_stepwells_schema_and_registers_the_machines(
    project: str, empty_url: str
) -> None:
    await Engine(empty_url).migrate()

    assert await version(project) == latest_version()
    assert await dump_of(project) == await dump_of(empty_url)
    assert {"Fulfil", "post_parcel"} <= await known_machines(project)


def test_a_database_that_stepwell_migrated_before_is_accepted(other: str) -> None:
    in_own_loop(Engine(other).migrate())
    before = in_own_loop(dump_of(other))

    call_command("migrate", database="other", verbosity=0)

    assert in_own_loop(dump_of(other)) == before
    assert {"Fulfil", "post_parcel"} <= in_own_loop(known_machines(other))


def test_a_single_version_can_be_migrated_to_and_the_rest_later(other: str) -> None:
    """Machines are registered only at the newest version: an older one may not have the columns."""
    twins = {"stepwell": "tests.surfaces.contrib.django.later.migrations"}
    with later_release(), override_settings(MIGRATION_MODULES=twins):
        call_command("migrate", "stepwell", "0001", database="other", verbosity=0)
        at_first = in_own_loop(version(other)), in_own_loop(known_machines(other))
        call_command("migrate", database="other", verbosity=0)
        at_last = in_own_loop(version(other)), in_own_loop(known_machines(other))

    assert at_first == (1, set())
    assert at_last[0] == 2
    assert {"Fulfil", "post_parcel"} <= at_last[1]


def test_a_migration_waits_for_one_of_another_host(other: str) -> None:
    """Both lock the same table: while `stepwell migrate` runs, Django's migrations do not begin."""
    with connections["other"].cursor() as cursor, psycopg.connect(other) as elsewhere:
        elsewhere.execute("create schema stepwell")
        cursor.execute("set lock_timeout = '50ms'")

        with pytest.raises(OperationalError, match="lock timeout"):
            call_command("migrate", "stepwell", database="other", verbosity=0)
        elsewhere.rollback()
        call_command("migrate", "stepwell", database="other", verbosity=0)

    assert in_own_loop(version(other)) == latest_version()


def test_the_client_role_is_named_by_the_settings(other: str) -> None:
    with override_settings(STEPWELL={**settings.STEPWELL, "CLIENT_ROLE": "stepwell_client"}):
        call_command("migrate", database="other", verbosity=0)

    [row] = in_own_loop(databases.query(other, "select client_role from stepwell.meta"))
    assert row["client_role"] == "stepwell_client"


def test_the_schema_is_named_by_the_settings(other: str) -> None:
    with override_settings(STEPWELL={**settings.STEPWELL, "DATABASE": "other", "SCHEMA": "shop"}):
        call_command("migrate", database="other", verbosity=0)
        with make_engine().sync as sync, transaction.atomic(using="other"):
            started = sync.start("Fulfil", {"order": 1}, connection=connections["other"])
            found = read_instance(started.id)

    schemas = in_own_loop(databases.query(other,
                                          "select nspname from pg_namespace where nspname in ('shop', 'stepwell')"))
    assert [row["nspname"] for row in schemas] == ["shop"]
    assert found is not None
    assert found.machine == "Fulfil"


def test_another_database_of_the_project_gets_no_schema(project: str) -> None:
    """Django runs every app's migrations in every database; this one is SQLite."""
    call_command("migrate", database="notes", verbosity=0)

    with connections["notes"].cursor() as cursor:
        cursor.execute("select name from sqlite_master")
        assert not [name for (name,) in cursor.fetchall() if "instances" in name]


def test_unapplying_leaves_the_schema_alone(project: str) -> None:
    call_command("migrate", "stepwell", "zero", verbosity=0)
    call_command("migrate", verbosity=0)

    assert in_own_loop(version(project)) == latest_version()


def test_djangos_test_database_has_the_schema(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `manage.py test` makes it."""
    creation = connections["default"].creation
    before = connections["default"].settings_dict["NAME"]
    monkeypatch.setitem(connections["default"].settings_dict["TEST"], "NAME", f"{before}_test")
    creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute("select current_database(), (select version from stepwell.meta)")
            found = cursor.fetchone()
            cursor.execute("select count(*) from stepwell.machines where name = 'Fulfil'")
            known = cursor.fetchone()
    finally:
        creation.destroy_test_db(before, verbosity=0)

    assert found == (f"{before}_test", latest_version())
    assert known == (1,)
