"""The schema's version: migrate it, check it, print its SQL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stepwell._core.registry import Registry
from stepwell._store import limits, machines, migrations
from stepwell._store.database import Database
from stepwell.config import Settings
from stepwell.errors import SchemaOutdated, SchemaTooNew

log = logging.getLogger("stepwell")

NO_CLIENT_ROLE = (
    "migrate: the role stepwell_client is missing and this user may not create it; everything works without it, but no "
    "other role can be let to the SQL functions. Let somebody who may create roles run "
    '"create role stepwell_client nologin", then migrate again; or run what "stepwell migrate --sql" prints'
)


async def migrate(
    database: Database, registry: Registry, settings: Settings
) -> list[str]:
    """Apply what is missing and make the app's machines and limits known; returns the names of what was applied."""
    found = await migrations.current_version(database)
    if found > migrations.latest_version():
        raise SchemaTooNew(found, migrations.latest_version())
    applied = await migrations.apply(database)
    if not await migrations.has_client(database):
        log.warning(NO_CLIENT_ROLE)
    if registry.all():  # the engine of an app, not one that was made only to migrate
        await machines.register(database, registry.all(), settings.retention)
        await limits.declare(database, registry.limits.all())
        await migrations.allow_payload(database, settings.max_payload)
    return [f"{migration.version:04}_{migration.name}" for migration in applied]


def migrate_over(send: Callable[[str], Sequence[Sequence[int]]], upto: int) -> list[str]:
    """Apply what is missing up to that version over somebody else's connection, such as Django's."""
    return [f"{migration.version:04}_{migration.name}" for migration in migrations.apply_over(send, upto)]


async def verify(database: Database) -> int:
    """The schema's version, or an error that says what to do."""
    found, needed = await migrations.current_version(database), migrations.latest_version()
    if found < needed:
        raise SchemaOutdated(found, needed)
    if found > needed:
        raise SchemaTooNew(found, needed)
    return found


def sql(since: int = 0) -> str:
    """The SQL that brings a schema of that version up to date."""
    return migrations.script(since)


def missing(since: int) -> list[str]:
    """The names of the migrations that a schema of that version lacks."""
    return [f"{m.version:04}_{m.name}" for m in migrations.migrations() if m.version > since]
