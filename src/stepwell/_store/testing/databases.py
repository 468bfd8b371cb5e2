"""Databases for tests: cloned from a migrated template, emptied to be used again, with a clock that can be moved."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from stepwell._core.store_errors import StoreFault
from stepwell._store.connection.driver_errors import translated
from stepwell._store.connection.pool import Database
from stepwell._store.connection.server_check import where
from stepwell._store.connection.type_cache import LearnedConnection
from stepwell._store.migrate import apply, script
from stepwell.config import SCHEMA
from stepwell.errors import DatabaseUnreachable

_LOCK = 0x57E9_3E11  # any number of our own
CLIENT_ROLE = "stepwell_client"  # of every clone, whatever it is called

# Of everything a test may have changed besides rows: the definition, without what truncating and analyzing changes.
# The clock is left out: emptying sets it back.
_FINGERPRINT = """
select md5(concat_ws('/',
  (select string_agg(concat_ws(',', c.oid, c.relname, c.relnamespace, c.relowner, c.relkind, c.relpersistence,
                               c.relrowsecurity, c.relacl, c.reloptions), ';' order by c.oid)
   from pg_class c where c.oid >= 16384),
  (select string_agg(a::text, ';' order by a.attrelid, a.attnum) from pg_attribute a where a.attrelid >= 16384),
  (select string_agg(p::text, ';' order by p.oid) from pg_proc p
   where p.oid >= 16384 and not p.oid = any ('{stepwell.now(),stepwell.instant()}'::regprocedure[])),
  (select string_agg(n::text, ';' order by n.oid) from pg_namespace n),
  (select string_agg(t::text, ';' order by t.oid) from pg_trigger t),
  (select string_agg(x.oid || x.conname || x.convalidated, ';' order by x.oid) from pg_constraint x),
  (select concat(count(*), ',', sum(hashtextextended(d::text, 0))) from pg_depend d
   where (d.objid >= 16384 or d.refobjid >= 16384)
     and not d.objid = any ('{stepwell.now(),stepwell.instant()}'::regprocedure[])),
  (select string_agg(s::text, ';') from pg_db_role_setting s
   where s.setdatabase = (select oid from pg_database where datname = current_database())),
  (select count(*) from pg_prepared_xacts where database = current_database())))"""

_TABLES = """
select 'stepwell.' || c.relname as name, pg_relation_size(c.oid) > 0 as is_written,
       pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) <= 65536
         and pg_total_relation_size(c.oid) <= 1048576 as is_small
from pg_class c
where c.relnamespace = 'stepwell'::regnamespace and c.relkind = 'r'
order by c.relname"""
_FORGET_SIZES = """
update pg_class set relpages = 0, reltuples = -1, relallvisible = 0
where relnamespace = 'stepwell'::regnamespace and relkind = 'r' and reltuples <> -1"""
_RESTART = """
select setval(q.seqrelid::regclass, q.seqstart, false)
from pg_sequence q join pg_class c on c.oid = q.seqrelid
where c.relnamespace = 'stepwell'::regnamespace"""
_ORPHANS = r"""
select d.datname
from pg_database d
where d.datname ~ '^stepwell_test_[0-9a-f]{12}_\d+$'
  and not exists (select from pg_stat_activity a where a.datname = d.datname)
  and not exists (select from pg_stat_activity a
                  where a.application_name = 'harness ' || split_part(d.datname, '_', 3))"""


@dataclass(frozen=True, slots=True)
class Pristine:
    """The state of an unused database."""

    fingerprint: str
    empty: frozenset[str]  # tables without rows
    seeds: str  # the rows of the other tables


def sibling(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(database)))


class Registrar:
    """A permanent connection to one server, which creates, empties and drops databases. It reconnects if lost.

    The names of its databases and of its connection contain its token, so that a later process can recognise and drop
    the databases of a killed process.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._token = secrets.token_hex(6)
        self._made = 0
        self._template = ""
        self._pristine: Pristine | None = None
        self._connection: asyncpg.Connection | None = None

    async def open(self) -> None:
        """Connect, drop the databases of killed processes, and create the template unless it exists."""
        for row in await (await self._connected()).fetch(_ORPHANS):
            await self.drop(str(row["datname"]))
        self._template = await ensure_template(self.url)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(timeout=5)

    async def clone(self) -> str:
        """Create a database as a copy of the template; returns its name."""
        name = self._next_name()
        await self._execute(f"create database {name} template {self._template}")
        if self._pristine is None:
            async with connected(sibling(self.url, name)) as connection:
                self._pristine = await _look_at(connection)
        return name

    async def drop(self, name: str) -> None:
        """Drop a database, and terminate its connections."""
        await self._execute(f"drop database if exists {name} with (force)")

    async def recycle(self, name: str) -> str | None:
        """Empty a used database and rename it; None if the test changed more than rows: then the database is dropped.

        Creating a database costs hundreds of files, which is slow on file systems that avoid just-deleted inodes.
        The new name keeps out a process that still has the old URL.
        """
        await self._cut_off(name)
        fresh = self._next_name()
        await self._execute(f"alter database {name} rename to {fresh}")
        try:
            async with connected(sibling(self.url, fresh)) as connection:
                is_clean = self._pristine is not None and await _empty(connection, self._pristine)
        except BaseException:
            await self.drop(fresh)
            raise
        if is_clean:
            return fresh
        await self.drop(fresh)
        return None

    async def _cut_off(self, name: str) -> None:
        """Terminate all connections to a database. Postgres itself would check only every 100 ms."""
        for _ in range(500):
            connection = await self._connected()
            left = await connection.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
            )
            if not left:
                return
            await asyncio.sleep(0.002)

    async def _execute(self, sql: str) -> None:
        await (await self._connected()).execute(sql)

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await _connect(self.url, application_name=f"harness {self._token}")
        return self._connection

    def _next_name(self) -> str:
        self._made += 1
        return f"stepwell_test_{self._token}_{self._made}"


async def _look_at(connection: asyncpg.Connection) -> Pristine:
    tables = [str(row["name"]) for row in await connection.fetch(_TABLES)]
    seeded = [t for t in tables if await connection.fetchval(f"select exists (select from {t})")]  # noqa: S608 - a name of the catalog's
    return Pristine(
        str(await connection.fetchval(_FINGERPRINT)), frozenset(tables) - set(seeded), await _rows(connection, seeded)
    )


async def _rows(connection: asyncpg.Connection, tables: Sequence[str]) -> str:
    select = "select string_agg(t::text, chr(10) order by t::text) from "
    return "/".join([f"{table}: {await connection.fetchval(f'{select}{table} t')}" for table in tables])


async def _empty(connection: asyncpg.Connection, pristine: Pristine) -> bool:
    """Undo a test's changes to rows and to the clock; False if it changed more.

    Small tables are deleted from and vacuumed: truncating creates a new file per index, which costs ten times as much.
    """
    if await connection.fetchval(_FINGERPRINT) != pristine.fingerprint:
        return False
    tables = await connection.fetch(_TABLES)
    if await _rows(connection, [row["name"] for row in tables if row["name"] not in pristine.empty]) != pristine.seeds:
        return False
    written = [row for row in tables if row["is_written"] and row["name"] in pristine.empty]
    small, large = [t["name"] for t in written if t["is_small"]], [t["name"] for t in written if not t["is_small"]]
    truncate = f"truncate {', '.join(large)};" if large else ""
    delete = "".join(f"delete from {table};" for table in small)  # noqa: S608 - our own names
    await connection.execute(
        f"begin; {truncate} {delete} delete from pg_statistic where starelid >= 16384; {_RESTART};"  # noqa: S608 - our own names
        f"{_clock(timedelta(0))}; commit"
    )
    if small:
        await connection.execute(f"vacuum (index_cleanup on) {', '.join(small)}")
        await connection.execute(_FORGET_SIZES)
    return True


def template_name() -> str:
    """The name of the migrated template: it depends on the migrations, so that each source tree has its own."""
    return "stepwell_template_" + hashlib.sha256(script(0, CLIENT_ROLE).encode()).hexdigest()[:12]


async def ensure_template(url: str) -> str:
    """Create the migrated template on this server unless it exists; returns its name."""
    name = template_name()
    async with connected(url) as admin:
        await admin.execute("select pg_advisory_lock($1)", _LOCK)
        if not await admin.fetchval("select true from pg_database where datname = $1 and datistemplate", name):
            await admin.execute(f"drop database if exists {name}")
            await admin.execute(f"create database {name}")
            await _migrate(sibling(url, name))
            await admin.execute(f"alter database {name} is_template true")
    return name


async def _migrate(url: str) -> None:
    async with Database(url) as database:
        await apply(database, CLIENT_ROLE)


async def clone(url: str, template: str, name: str) -> None:
    """Create a database as a copy of the template."""
    await _administer(url, f"create database {name} template {template}")


async def drop(url: str, name: str) -> None:
    """Drop a database, and terminate its connections."""
    await _administer(url, f"drop database if exists {name} with (force)")
    async with connected(url) as connection:
        roles = "select rolname from pg_roles where right(rolname, length($1)) = $1 or rolname ~ $2"
        ours = f"_client_{name}", f"_client_{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:15]}"
        for row in await connection.fetch(roles, *ours):  # of a test that migrated from nothing
            await connection.execute(f'drop role if exists "{row["rolname"]}"')


async def add_schema(url: str, schema: str) -> None:
    """Create another schema in a database, beside the one of each clone."""
    async with Database(url, schema=schema) as database:
        await apply(database, CLIENT_ROLE.replace(SCHEMA, schema, 1))


async def move_clock(url: str, offset: timedelta, schema: str = SCHEMA) -> None:
    """Set the engine's clock in this database ahead of real time by the offset."""
    await _administer(url, f"{_clock(offset, schema)}; notify {schema}_due, ''")


def _clock(offset: timedelta, schema: str = SCHEMA) -> str:
    """SQL that moves the engine's times, of a transaction and of a statement, by the offset."""
    return ";".join(
        f"create or replace function {schema}.{name}() returns timestamptz language sql stable parallel safe "
        f"return pg_catalog.{source}() + interval '{offset.total_seconds():.6f} seconds'"
        for name, source in (("now", "now"), ("instant", "statement_timestamp"))
    )


async def query(url: str, sql: str, *args: Any) -> list[asyncpg.Record]:
    """Send a statement of a test."""
    async with connected(url) as connection:
        return list(await connection.fetch(sql, *args))


async def _administer(url: str, sql: str) -> None:
    async with connected(url) as connection:
        await connection.execute(sql)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for the length of the block."""
    connection = await _connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _connect(url: str, **settings: str) -> asyncpg.Connection:
    try:
        with translated():
            return await asyncpg.connect(url, connection_class=LearnedConnection, server_settings=settings)
    except (StoreFault, ValueError, TypeError) as error:
        raise DatabaseUnreachable(where(url), str(error)) from error
