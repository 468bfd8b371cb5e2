"""The engine's pool of connections, and the only way to send a statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Protocol, Self

import asyncpg

from stepwell._core.store_errors import Outage
from stepwell._process import probes
from stepwell._process.outages import Outages
from stepwell._store.connection.dark_connections import Silence
from stepwell._store.connection.driver_errors import DRIVER_ERRORS, begun_transaction, fault_of, translated
from stepwell._store.connection.gaps import Gaps, label, opener
from stepwell._store.connection.server_check import check_kept, check_pooler, check_version, explained
from stepwell._store.connection.settings import (
    SERVER_SHARE,
    Bounds,
    EngineConnection,
    close_pool,
    drop_idle,
    open_pool,
)
from stepwell._store.connection.sql_files import application, statement
from stepwell._store.connection.timeline import Timelines
from stepwell.config import SCHEMA, check_url
from stepwell.errors import EngineClosed, ForeignLoop

LONG = 60.0  # seconds per statement in transactions that read or change many rows
Row = asyncpg.Record

# READ COMMITTED, whatever the database's default is: our statements recheck locked rows with a fresh snapshot, which
# higher isolation levels do not take. UTC: a delay of a day is always 24 hours, while daylight saving time would make
# it 23 or 25 twice a year. No jit: it never pays off for our statements.
# Only Postgres' own schema in the path: otherwise another role could create a schema with functions that match our
# calls better than Postgres' own, and they would run with our rights.
PATH: Final = {"search_path": "pg_catalog, pg_temp"}
_EVERYWHERE: Final = {"default_transaction_isolation": "read committed", "timezone": "UTC", "jit": "off", **PATH}

# Statements are planned once, with index scans and nested loops only: the one good plan for each of them, for tables
# and batches of any size. Planning costs more than running them (docs/decisions/0003).
_PLANNED: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

CLIENT: Final = {**_EVERYWHERE, **_PLANNED, "application_name": "stepwell"}
WORKER: Final = {**_EVERYWHERE, **_PLANNED, "application_name": "stepwell worker"}

# For rare statements without a single plan that is good for all arguments and tables.
PLAN_ANEW: Final = "set local plan_cache_mode = force_custom_plan"


class Queryable(Protocol):
    """Sends statements: the database, or one of its transactions."""

    @property
    def schema(self) -> str:
        """The schema of the statements."""
        ...

    async def fetch(self, name: str, *args: object) -> list[Row]: ...


class Counting(Protocol):
    """A pool with its schema, and a counter of its statements, for the tests of statement counts."""

    schema: str
    statements: int


class _Connection(EngineConnection):
    """A connection that the pool does not reset: it has no session state, and a reset costs a round trip."""

    @property
    def bare(self) -> Self:
        """The connection without the pool's proxy, which raises on every use once the connection is lost."""
        return self

    def get_reset_query(self) -> str:
        return ""


class Session:
    """One connection, nearly always inside a transaction."""

    def __init__(
        self, connection: asyncpg.Connection, pool: Counting, gaps: Gaps | None = None, *, answer: float | None = None
    ) -> None:
        self._connection = connection
        self.pool = pool
        self._gaps = gaps
        self._answer = answer  # seconds that a statement may take; None: the connection's default
        self._is_long = False

    @property
    def schema(self) -> str:
        return self.pool.schema

    async def fetch(self, name: str, *args: object) -> list[Row]:
        self.pool.statements += 1
        if self._gaps is not None:
            await self._gaps.reach(name)
        with translated(), self._silence():
            return await self._connection.fetch(statement(name, self.pool.schema), *args, timeout=self._answer)

    async def copy(self, table: str, columns: Sequence[str], rows: bytes) -> None:
        """Insert rows in the binary format of COPY."""
        self.pool.statements += 1
        if self._gaps is not None:
            await self._gaps.reach(f"copy {table}")
        # The driver takes bytes for a path. It reads files in a thread, which may have to wait; with an iterator, it
        # waits for room in its send buffer, and does not notice a lost connection.
        source: Any = memoryview(rows)
        with translated(), self._silence():
            await self._connection.copy_to_table(
                table, schema_name=self.pool.schema, columns=columns, source=source, format="binary",
                timeout=self._answer,
            )  # fmt: skip

    async def run(self, sql: str, *, name: str = "") -> None:
        """Send a script of several statements, such as a migration; gaps use `name`, or the start of the script."""
        self.pool.statements += 1
        if self._gaps is not None:
            await self._gaps.reach(name or label(sql))
        with translated(), self._silence():
            await self._connection.execute(sql, timeout=self._answer)

    def _silence(self) -> AbstractContextManager[None]:
        """A context for a statement: with a long timeout, it checks that the server is still working on it."""
        connection: Any = self._connection
        return Silence(connection.bare) if self._is_long else nullcontext()

    async def allow(self, seconds: float, *, first: str = "") -> None:
        """Set the timeout of each further statement in the transaction. The timeout between statements stays: a host
        that freezes there loses its locks as soon as anywhere."""
        names = ("statement_timeout", "lock_timeout")
        await self.run(first + "; ".join(f"set local {name} = {int(seconds * 1000)}" for name in names))
        self._answer = seconds / SERVER_SHARE
        self._is_long = True

    async def bound_waits(self, patience: timedelta) -> None:
        """Set the timeout for each lock in the rest of the transaction. If it exceeds the statement timeout, check
        meanwhile that the server is still working on the statement."""
        await self.run(f"set local lock_timeout = {patience // timedelta(milliseconds=1)}")
        if self._answer is not None and self._answer * SERVER_SHARE < patience.total_seconds():
            self._answer = patience.total_seconds() / SERVER_SHARE
            self._is_long = True


class Database:
    """Connections to one Postgres. Opening it checks the server. A lost connection is an Outage, and is replaced."""

    def __init__(
        self, dsn: str, *, session: Mapping[str, str] = CLIENT, most: int = 10, bounds: Bounds | None = None,
        timelines: Timelines | None = None, outages: Outages | None = None, schema: str = SCHEMA,
    ) -> None:  # fmt: skip
        check_url(dsn)
        self.schema = schema
        self.timelines = timelines  # of a worker; a client has no claims that a failover could invalidate
        self.dsn = dsn
        self._bounds = bounds or Bounds()
        name = session["application_name"].replace(SCHEMA, application(schema), 1)
        self._session = {**session, **self._bounds.settings(), "application_name": name}
        self.statements = 0  # sent so far
        self.outages = outages or Outages()
        self.on_dark: list[Callable[[], None]] = []  # called when a connection does not respond in time
        self._most = most
        self.pool: asyncpg.Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            with explained(self.dsn), translated():
                self.pool = await open_pool(
                    self.dsn, _Connection, self._most, self._session, self._bounds, answer=self._bounds.answer,
                    timelines=self.timelines,
                )  # fmt: skip
                async with _Lent(self) as connection:
                    await check_version(connection)
                    if connection.bare.is_pooled and self._most > 1:
                        await check_pooler(connection, _Lent(self), self.dsn)
                    await check_kept(connection, self._session)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections; terminate those that do not respond."""
        pool, self.pool = self.pool, None
        if pool is not None:
            await close_pool(pool)

    def cut(self) -> None:
        """Terminate all connections abruptly, as the end of a process does."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.terminate()

    def check_loop(self) -> None:
        """Refuse a running loop other than the one that the connections belong to."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ForeignLoop

    async def fetch(self, name: str, *args: object) -> list[Row]:
        """Send one statement in a transaction of its own."""
        self.statements += 1
        try:
            async with _Lent(self) as connection:
                return await connection.fetch(statement(name, self.schema), *args)
        except DRIVER_ERRORS as error:
            raise fault_of(error) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Session]:
        """One connection for several statements, each in a transaction of its own."""
        with translated():
            async with _Lent(self) as connection:
                yield Session(connection, self)

    @asynccontextmanager
    async def transaction(self, *, anew: bool = False, is_long: bool = False) -> AsyncIterator[Session]:
        """A transaction of several statements. With `anew`, they are planned for their arguments; with `is_long`, or
        `anew`, each of them may take LONG seconds."""
        with translated():
            async with _Lent(self) as connection:
                gaps = Gaps(opener(), connection.get_server_pid()) if probes.hooks else None
                async with begun_transaction(connection.bare):
                    session = Session(connection, self, gaps)
                    if anew or is_long:
                        await session.allow(LONG, first=f"{PLAN_ANEW}; " if anew else "")
                    yield session
                    if gaps is not None:
                        await gaps.reach("commit")
                if gaps is not None:
                    await gaps.reach(None)

    @asynccontextmanager
    async def listening(
        self, dsn: str | None, channels: Sequence[str], hear: Callable[[str, str], None], lost: Callable[[], None]
    ) -> AsyncIterator[Queryable]:
        """A separate connection that LISTENs: `hear(channel, payload)` per notification, `lost()` when it breaks.

        In the database, channel names have the schema as a prefix; `hear` receives them without it.
        """
        prefix, name = f"{self.schema}_", f"{application(self.schema)} listener"
        with translated():
            connection: EngineConnection = await asyncpg.connect(
                dsn or self.dsn, connection_class=EngineConnection,
                server_settings={"application_name": name}, timeout=self._bounds.connect,
                command_timeout=self._bounds.answer,
            )  # fmt: skip
        try:
            with translated():
                await connection.settle(dsn or self.dsn, {**PATH, **self._bounds.settings()}, self._bounds)
            connection.add_termination_listener(lambda _: lost())
            with translated():
                for channel in channels:
                    await connection.add_listener(
                        prefix + channel, lambda _c, _p, name, payload: hear(name.removeprefix(prefix), str(payload))
                    )
            yield Session(connection, self)
        finally:
            connection.terminate()

    @property
    def era(self) -> int:
        """A number that grows with each change of the server's timeline."""
        return 0 if self.timelines is None else self.timelines.era

    def check_era(self, era: int) -> None:
        """Raise Outage if the server's timeline has changed since this era."""
        if self.timelines is not None:
            self.timelines.check_era(era)


class _Lent:
    """A pool connection for the length of the block. A class, as a generator costs more time per statement."""

    __slots__ = ("_connection", "_database", "_era", "_lent", "_pool")

    _lent: _Connection  # the pool's proxy for the connection
    _connection: _Connection

    def __init__(self, database: Database) -> None:
        if database.pool is None:
            raise EngineClosed
        database.check_loop()
        self._database = database
        self._pool = database.pool
        self._era = 0 if database.timelines is None else database.timelines.era

    async def __aenter__(self) -> _Connection:
        lent: Any = await self._pool.acquire()
        self._lent = lent
        self._connection = connection = lent.bare
        timelines = self._database.timelines
        if timelines is not None and (connection.timeline != timelines.current or self._era != timelines.era):
            try:
                self._check_timeline(timelines)
            except Outage as error:
                await self.__aexit__(Outage, error, None)
                raise
        return self._lent

    def _check_timeline(self, timelines: Timelines) -> None:
        """Raise Outage for a connection of another timeline, or a statement that was requested in an earlier era."""
        if not timelines.fits(self._connection.timeline):
            self._connection.was_cut = True  # so that `__aexit__` drops the idle connections too
            raise Outage("the connection is on a timeline that the server has left")
        timelines.check_era(self._era)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.was_cut:
            if isinstance(error, Exception):
                drop_idle(self._pool)
                for tell in self._database.on_dark:
                    tell()
            self._connection.terminate()  # now: the driver's release would fail if it ended during the release
        proxy: Any = self._lent
        await self._pool.release(proxy)
