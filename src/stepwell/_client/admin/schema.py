"""The schema: migrate it, check its version, print its SQL."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import timedelta

from stepwell._core.registry import Registry
from stepwell._store import limits
from stepwell._store import migrate as migrations
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import machines
from stepwell.config import SCHEMA, Settings, check_schema
from stepwell.errors import InvalidInput, SchemaOutdated, SchemaTooNew

log = logging.getLogger("stepwell")

LONGEST_MIGRATION = timedelta(days=1)  # an index over many millions of rows takes its time

NO_CLIENT_ROLE = (
    "migrate: the role {role} is missing and this user may not create it; everything works without it, but no "
    "other role can be granted the SQL functions. As a user with the right to create roles, run "
    '"create role {role} nologin", then migrate again; or run what "stepwell migrate --sql" prints'
)
PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
LONGEST_ROLE = 63  # bytes; Postgres would cut a longer name


async def migrate(
    database: Database, registry: Registry, settings: Settings, client_role: str | None = None
) -> list[str]:
    """Apply missing migrations and register the app's machines and limits; returns the names of those applied."""
    await migrations.check_owner(database)
    found = await migrations.current_version(database)
    if is_newer(found):
        raise SchemaTooNew(found, migrations.latest_version(), database.schema)
    applied = await migrations.apply(database, client_role)
    role, is_ready = await migrations.find_client(database)
    if not is_ready:
        log.warning(NO_CLIENT_ROLE.format(role=quoted(role)))
    if registry.all():  # the engine of an app, not one that only migrates
        await machines.register(database, registry.all(), settings.retention)
        await limits.declare(database, registry.limits.all())
        await migrations.allow_payload(database, settings.max_payload)
    return [f"{migration.version:04}_{migration.name}" for migration in applied]


def migrate_over(
    send: Callable[[str], Sequence[Sequence[int]]], upto: int, client_role: str | None = None, schema: str = SCHEMA
) -> list[str]:
    """Apply missing migrations up to that version over a given connection, such as Django's."""
    applied = migrations.apply_over(send, upto, check_role(client_role), check_schema(schema))
    return [f"{migration.version:04}_{migration.name}" for migration in applied]


def check_role(name: object) -> str | None:
    """Check a name for the client role."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise InvalidInput("client_role", f"expected the name of a role, got {name!r}")
    if not 0 < len(name.encode()) <= LONGEST_ROLE or "\0" in name:
        raise InvalidInput("client_role", f"the name of a role has 1 to {LONGEST_ROLE} bytes and no NUL, got {name!r}")
    if name.startswith("pg_") or name in ("public", "none"):
        raise InvalidInput("client_role", f"{name!r} is reserved by Postgres; choose another name")
    return name


def quoted(name: str) -> str:
    """The name of a role as an SQL identifier."""
    return name if PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


async def verify(database: Database) -> int:
    """The schema's version, or an error that says what to do. A newer schema passes if it supports this code."""
    stamp, needed = await migrations.current_stamp(database), migrations.latest_version()
    if stamp.version < needed:
        raise SchemaOutdated(stamp.version, needed, database.schema)
    if (problem := stamp.problem) is not None:
        raise problem
    return stamp.version


def sql(since: int = 0, client_role: str | None = None, schema: str = SCHEMA) -> str:
    """The SQL that migrates a schema of that version to the latest one."""
    if is_newer(since):
        raise SchemaTooNew(since, migrations.latest_version(), schema)
    return migrations.script(since, check_role(client_role), check_schema(schema))


def is_newer(version: int) -> bool:
    """Whether a schema of that version has migrations that this code does not know."""
    return version > migrations.latest_version()


def missing(since: int) -> list[str]:
    """The names of the migrations that a schema of that version lacks."""
    return [f"{m.version:04}_{m.name}" for m in migrations.migrations() if m.version > since]
