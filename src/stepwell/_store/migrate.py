"""Applies the numbered migrations: forward only, under a lock, from any number of hosts."""

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
_PATIENCE = 86_400.0  # seconds for one migration, here or on another host: an index over many rows takes long
LOCK_PATIENCE = timedelta(minutes=1)  # for a table lock: a migration that waits for one blocks all other statements
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_COMPATIBLE = re.compile(r"-- Compatible: (yes|no)\n")

_FOREIGN = "SW090"


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration file: number, name, SQL, and whether older code may run on the schema after it."""

    version: int
    name: str
    sql: str
    is_compatible: bool


@dataclass(frozen=True, slots=True)
class Stamp:
    """The version of a schema, and the oldest code that may run on it."""

    version: int
    oldest_code: int
    schema: str = SCHEMA

    @property
    def problem(self) -> SchemaTooNew | None:
        """The error if this code is too old for the schema. Whether the schema is too old is not checked."""
        if self.oldest_code <= latest_version():
            return None
        return SchemaTooNew(self.version, latest_version(), self.schema)


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations in order, numbered without gaps from 1."""
    found = [
        read(int(match[1]), match[2], file.read_text("utf-8"))
        for file in _FOLDER.iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda m: m.version))


def read(version: int, name: str, sql: str) -> Migration:
    """Read a migration from the text of its file; line 1 says whether it is compatible."""
    head = _COMPATIBLE.match(sql)
    if head is None:
        raise ValueError(f"migration {version:04}_{name}: line 1 must be '-- Compatible: yes' or "
                         "'-- Compatible: no'")
    return Migration(version, name, sql, head[1] == "yes")


def latest_version() -> int:
    return migrations()[-1].version


def oldest_code(version: int) -> int:
    """The oldest code for a schema of that version: the version of its last incompatible migration."""
    return max((m.version for m in migrations() if m.version <= version and not m.is_compatible), default=0)


async def current_version(db: Database) -> int:
    """The schema's version; 0 before the first migration."""
    return (await current_stamp(db)).version


async def current_stamp(db: Database) -> Stamp:
    """The stamp of the schema; zeros before the first migration."""
    try:
        return await _stamped(db, db.schema)
    except Misfit as error:
        if not isinstance(error.__cause__, asyncpg.UndefinedTableError):
            raise
        return Stamp(0, 0, db.schema)


async def check_owner(db: Queryable) -> None:
    """Raise ForeignSchema if another role owns part of the schema, before it is used."""
    for row in await db.fetch("schema/find_foreign"):
        raise ForeignSchema(row["what"], row["owner"])


async def apply(db: Database, client_role: str | None = None) -> list[Migration]:
    """Bring the schema up to date in one transaction; returns the applied migrations."""
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
    """Bring the schema to at least version `upto` on a caller's connection, in the caller's transaction.

    `send` runs a script, and returns the rows of a select. The lock is held until the transaction ends. The transaction
    keeps its search_path.
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
    """The SQL that lets the client role call the SQL functions; running it again changes nothing."""
    sql = rendered((_FOLDER / "grants.sql").read_text("utf-8"), schema)
    if client_role is None:
        return sql
    return f"select pg_catalog.set_config('{schema}.client_role', {_quoted(client_role)}, true);\n{sql}"


async def find_client(db: Queryable) -> tuple[str, bool]:
    """The name of the client role, and whether it exists and may call the SQL functions."""
    [row] = await db.fetch("schema/find_client")
    return row["name"], bool(row["has"])


async def allow_payload(db: Queryable, most: int) -> None:
    """Let the SQL functions accept payloads up to the engine's limit."""
    await db.fetch("schema/allow_payload", most)


def script(since: int, client_role: str | None = None, schema: str = SCHEMA) -> str:
    """The script that `apply` would send from that version on, to be run by hand."""
    missing = [m for m in migrations() if m.version > since]
    parts = ["begin;", _prologue(schema)]
    parts += [f"-- {m.version:04} {m.name}\n{rendered(m.sql, schema)}" for m in missing]
    if missing:
        parts.append(_stamp(missing[-1].version, schema))
    parts.append(grants(client_role, schema))
    return "\n".join([*parts, "commit;"]) + "\n"


def _check(schema: str) -> str:
    """SQL that refuses objects of other roles: they would run with the rights of the role that migrates."""
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
    """The SQL before all migrations: creates the schema and its table meta, and locks the table.

    Concurrent migrations run one after another: the second one waits for the first, and finds its objects. Locking a
    table needs a right, unlike an advisory lock. The search_path excludes functions of other schemas.
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
