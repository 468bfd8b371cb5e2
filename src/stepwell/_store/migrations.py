"""The numbered migrations, and how they are applied: forward only, under a lock, from as many hosts as like to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import asyncpg

from stepwell._core.faults import Refusal
from stepwell._store.database import Database, Queryable
from stepwell._store.statements import statement

_FOLDER = Path(__file__).parent / "migrations"
_PATIENCE = 86_400.0  # seconds, for one of them, and for another host's: an index over many rows takes its time
LOCK_PATIENCE = timedelta(minutes=1)  # for somebody's lock on a table: all others wait behind who waits for that
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

_PROLOGUE = """\
select pg_advisory_xact_lock(hashtextextended('stepwell.migrate', 0));
create schema if not exists stepwell;
create table if not exists stepwell.meta (
  singleton boolean primary key default true check (singleton),
  version integer not null,
  migrated_at timestamptz not null default pg_catalog.now()
);
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name, its SQL."""

    version: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations in order, numbered 1, 2, 3 … without a gap."""
    found = [
        Migration(int(match[1]), match[2], file.read_text("utf-8"))
        for file in _FOLDER.iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda m: m.version))


def latest_version() -> int:
    return migrations()[-1].version


async def current_version(db: Database) -> int:
    """The schema's version; 0 where nothing was migrated yet."""
    try:
        return await _stamped(db)
    except Refusal as error:
        if not isinstance(error.__cause__, asyncpg.UndefinedTableError):
            raise
        return 0


async def apply(db: Database) -> list[Migration]:
    """Bring the schema up to date in one transaction; returns what was applied."""
    async with db.transaction() as session:
        await session.run(_PROLOGUE, patience=_PATIENCE)
        current = await _stamped(session)
        missing = [m for m in migrations() if m.version > current]
        await session.bound_waits(LOCK_PATIENCE)
        for migration in missing:
            await session.run(migration.sql, patience=_PATIENCE)
        if missing:
            await session.run(_stamp(missing[-1].version))
        await session.run(grants())
    return missing


def apply_over(send: Callable[[str], Sequence[Sequence[int]]], upto: int) -> list[Migration]:
    """Bring the schema to at least that version over a connection, and in a transaction, of somebody else's.

    `send` runs a script; of a select it returns the rows. The lock is held until that transaction ends.
    """
    send(_PROLOGUE)
    rows = send(statement("schema/version"))
    current = rows[0][0] if rows else 0
    missing = [m for m in migrations() if current < m.version <= upto]
    for migration in missing:
        send(migration.sql)
    if missing:
        send(_stamp(missing[-1].version))
    send(grants())
    return missing


@cache
def grants() -> str:
    """The SQL that lets the role `stepwell_client` use the SQL doors; does nothing new the second time."""
    return (_FOLDER / "grants.sql").read_text("utf-8")


async def has_client(db: Queryable) -> bool:
    """Whether there is a role `stepwell_client` that may use the SQL doors."""
    [row] = await db.fetch("schema/has_client")
    return bool(row["has"])


async def allow_payload(db: Queryable, most: int) -> None:
    """Let the SQL doors take payloads up to the engine's own limit."""
    await db.fetch("schema/allow_payload", most)


def script(since: int) -> str:
    """What `apply` would send from that version on, for those who run their SQL by hand."""
    missing = [m for m in migrations() if m.version > since]
    parts = ["begin;", _PROLOGUE]
    parts += [f"-- {m.version:04} {m.name}\n{m.sql}" for m in missing]
    if missing:
        parts.append(_stamp(missing[-1].version))
    parts.append(grants())
    return "\n".join([*parts, "commit;"]) + "\n"


async def _stamped(db: Queryable) -> int:
    rows = await db.fetch("schema/version")
    return int(rows[0]["version"]) if rows else 0


def _stamp(version: int) -> str:
    return (
        f"insert into stepwell.meta (version) values ({version:d})\n"  # noqa: S608 - a number of our own
        "on conflict (singleton) do update set version = excluded.version, migrated_at = excluded.migrated_at;"
    )
