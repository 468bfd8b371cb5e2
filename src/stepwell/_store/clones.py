"""Databases for tests: cloned from a migrated template, with a clock that can be moved."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from stepwell._store.database import Database
from stepwell._store.migrations import apply, script

_LOCK = 0x57E9_3E11  # any number of our own


def sibling(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(database)))


async def ensure_template(url: str) -> str:
    """Create the migrated template on this server unless it is there; returns its name."""
    name = "stepwell_template_" + hashlib.sha256(script(0).encode()).hexdigest()[:12]
    admin = await asyncpg.connect(url)
    try:
        await admin.execute("select pg_advisory_lock($1)", _LOCK)
        if not await admin.fetchval("select true from pg_database where datname = $1 and datistemplate", name):
            await admin.execute(f"drop database if exists {name}")
            await admin.execute(f"create database {name}")
            await _migrate(sibling(url, name))
            await admin.execute(f"alter database {name} is_template true")
    finally:
        await admin.close()
    return name


async def _migrate(url: str) -> None:
    database = Database(url)
    await database.open()
    try:
        await apply(database)
    finally:
        await database.close()


async def clone(url: str, template: str, name: str) -> None:
    """Create a database as a copy of the template."""
    await _administer(url, f"create database {name} template {template}")


async def drop(url: str, name: str) -> None:
    """Drop a database with whatever is still connected to it."""
    await _administer(url, f"drop database if exists {name} with (force)")


async def move_clock(url: str, offset: timedelta) -> None:
    """Let the engine's clock in this database run ahead of real time by the offset."""
    await _administer(
        url,
        "create or replace function stepwell.now() returns timestamptz language sql stable parallel safe "
        f"return pg_catalog.now() + interval '{offset.total_seconds():.6f} seconds'",
    )
    await _administer(url, "notify stepwell_due, ''")


async def query(url: str, sql: str, *args: Any) -> list[asyncpg.Record]:
    """Send one statement of a test's own."""
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql, *args))
    finally:
        await connection.close()


async def _administer(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
