"""The numbered migrations, and how they are applied: forward only, under a lock, from as many hosts as like to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from textwrap import indent

import asyncpg

from stepwell._core.store_errors import Misfit
from stepwell._store.connection.pool import PATH, Database, Queryable
from stepwell._store.connection.sql_files import rendered, statement
from stepwell.config import SCHEMA
from stepwell.errors import ForeignSchema, SchemaTooNew

_FOLDER = Path(__file__).parent / "migrations"
_PATIENCE = 86_400.0  # seconds, for one of them, and for another host's: an index over many rows takes its time
LOCK_PATIENCE = timedelta(minutes=1)  # for a lock on a table: the migration that waits for it blocks all others
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_COMPATIBLE = re.compile(r"-- Compatible: (yes|no)\n")

_FOREIGN = "SW090"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name, its SQL, and whether code that does not know it may go on running."""

    version: int
    name: str
    sql: str
    is_compatible: bool


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a schema says about itself: its version, and the oldest code that may run on it."""

    version: int
    oldest_code: int
    schema: str = SCHEMA

    @property
    def problem(self) -> SchemaTooNew | None:
        """Why this code may not run on the schema, if it may not. What the schema may lack is not looked at."""
        if self.oldest_code <= latest_version():
            return None
        return SchemaTooNew(self.version, latest_version(), self.schema)


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations in order, numbered 1, 2, 3 … without a gap."""
    found = [
        read(int(match[1]), match[2], file.read_text("utf-8"))
        for file in _FOLDER.iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda m: m.version))


def read(version: int, name: str, sql: str) -> Migration:
    """A migration from its file; line 1 says whether it is compatible."""
    head = _COMPATIBLE.match(sql)
    if head is None:
        raise ValueError(f"migration {version:04}_{name}: line 1 must be '-- Compatible: yes' or "
                         "'-- Compatible: no'")
    return Migration(version, name, sql, head[1] == "yes")


def latest_version() -> int:
    return migrations()[-1].version


def oldest_code(version: int) -> int:
    """The oldest code for a schema of that version: it knows the last migration that is not compatible."""
    return max((m.version for m in migrations() if m.version <= version and not m.is_compatible), default=0)


async def current_version(db: Database) -> int:
    """The schema's version; 0 where nothing was migrated yet."""
    return (await current_stamp(db)).version


async def current_stamp(db: Database) -> Stamp:
    """What the schema says about itself; zeros where nothing was migrated yet."""
    try:
        return await _stamped(db, db.schema)
    except Misfit as error:
        if not isinstance(error.__cause__, asyncpg.UndefinedTableError):
            raise
        return Stamp(0, 0, db.schema)


async def check_owner(db: Queryable) -> None:
    """Refuse a schema that is somebody else's, before anything of it is used."""
    for row in await db.fetch("schema/find_foreign"):
        raise ForeignSchema(row["what"], row["owner"])


async def apply(db: Database, client_role: str | None = None) -> list[Migration]:
    """Bring the schema up to date in one transaction; returns what was applied."""
    async with db.transaction() as session:
        await session.allow(_PATIENCE)
        await session.run(_prologue(db.schema), name="migrations/prologue")
        current = (await _stamped(session, db.schema)).version
        missing = [m for m in migrations() if m.version > current]
        await session.bound_waits(LOCK_PATIENCE)
        for migration in missing:
            await session.run(rendered(migration.sql, db.schema), name=f"migrations/{migration.version:04}")
        if missing:
            await session.run(_stamp(missing[-1].version, db.schema), name="migrations/stamp")
        await session.run(grants(client_role, db.schema), name="migrations/grants")
    return missing


def apply_over(
    send: Callable[[str], Sequence[Sequence[int]]], upto: int, client_role: str | None = None, schema: str = SCHEMA
) -> list[Migration]:
    """Bring the schema to at least that version over a connection, and in a transaction, of somebody else's.

    `send` runs a script; of a select it returns the rows. The lock is held until that transaction ends. What that finds
    in its search_path afterwards is what it found before.
    """
    [[path]] = send("select pg_catalog.current_setting('search_path')")
    send(_prologue(schema))
    rows = send(statement("schema/read_version", schema))
    current = rows[0][0] if rows else 0
    missing = [m for m in migrations() if current < m.version <= upto]
    for migration in missing:
        send(rendered(migration.sql, schema))
    if missing:
        send(_stamp(missing[-1].version, schema))
    send(grants(client_role, schema))
    send(f"select pg_catalog.set_config('search_path', {_quoted(path)}, true)")
    return missing


@cache
def grants(client_role: str | None = None, schema: str = SCHEMA) -> str:
    """The SQL that lets the client role call the SQL functions; does nothing new the second time."""
    sql = rendered((_FOLDER / "grants.sql").read_text("utf-8"), schema)
    if client_role is None:
        return sql
    return f"select pg_catalog.set_config('{schema}.client_role', {_quoted(client_role)}, true);\n{sql}"


async def find_client(db: Queryable) -> tuple[str, bool]:
    """The name of the client role, and whether it is there and may call the SQL functions."""
    [row] = await db.fetch("schema/find_client")
    return row["name"], bool(row["has"])


async def allow_payload(db: Queryable, most: int) -> None:
    """Let the SQL functions take payloads up to the engine's own limit."""
    await db.fetch("schema/allow_payload", most)


def script(since: int, client_role: str | None = None, schema: str = SCHEMA) -> str:
    """What `apply` would send from that version on, to be run by hand."""
    missing = [m for m in migrations() if m.version > since]
    parts = ["begin;", _prologue(schema)]
    parts += [f"-- {m.version:04} {m.name}\n{rendered(m.sql, schema)}" for m in missing]
    if missing:
        parts.append(_stamp(missing[-1].version, schema))
    parts.append(grants(client_role, schema))
    return "\n".join([*parts, "commit;"]) + "\n"


def _check(schema: str) -> str:
    """Refuse what another role has made: it would run with the rights of the role that migrates."""
    return f"""\
for found in
{statement("schema/find_foreign", schema)}loop
  raise exception '% belongs to %, and % is not a member of that role', found.what, found.owner, current_user
    using errcode = '{_FOREIGN}', detail = 'What is in it would run with the rights of the role that migrates.',
          hint = 'If it is yours, migrate as its owner, or let a member of that role do it; else drop the schema.';
end loop;
"""


@cache
def _prologue(schema: str) -> str:
    """What comes before all migrations: the schema, its table meta, and the lock on that.

    One at a time: a migration that makes what another one is making waits until that is committed, and finds it there.
    A lock on the table does the rest; unlike an advisory lock it takes a right. No function of another schema stands in
    for one of Postgres'.
    """
    return f"""\
set local search_path = {PATH["search_path"]};
do $$
declare
  found record;
begin
  if to_regnamespace('{schema}') is null then
    begin
      create schema {schema};
    exception when duplicate_schema or unique_violation then null;
    end;
  end if;
{indent(_check(schema), "  ")}
  if to_regclass('{schema}.meta') is null then
    begin
      create table {schema}.meta (
        singleton boolean primary key default true check (singleton),
        version integer not null,
        oldest_code integer not null,
        migrated_at timestamptz not null default pg_catalog.now()
      );
    exception when duplicate_table or unique_violation then null;
    end;
{indent(_check(schema), "    ")}
  end if;
end
$$;
lock table {schema}.meta in share row exclusive mode;
"""


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


async def _stamped(db: Queryable, schema: str) -> Stamp:
    rows = await db.fetch("schema/read_version")
    return Stamp(**rows[0], schema=schema) if rows else Stamp(0, 0, schema)


def _stamp(version: int, schema: str) -> str:
    return (
        f"insert into {schema}.meta (version, oldest_code)\nvalues ({version}, {oldest_code(version)})\n"
        "on conflict (singleton) do update set version = excluded.version, oldest_code = excluded.oldest_code, "
        "migrated_at = excluded.migrated_at;"
    )
