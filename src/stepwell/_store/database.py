"""The pool of connections, as the engine wants them, and the one way a statement is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Protocol, Self

import asyncpg

from stepwell._core.faults import StoreFault
from stepwell._store.statements import statement
from stepwell._store.translation import translated
from stepwell._store.types import LearnedConnection
from stepwell.errors import DatabaseUnreachable, EngineClosed, ForeignLoop, InvalidDatabaseURL, ServerTooOld

OLDEST_SERVER = 150_000
CLOSE_TIMEOUT = 5.0
COMMAND_TIMEOUT = 60.0
Row = asyncpg.Record

# Everywhere READ COMMITTED, whatever the database's default is: our statements recheck what they locked with a fresh
# snapshot, which a transaction above it does not have. And UTC: a delay of a day is 24 hours, where in a zone with
# summer time Postgres would make it 23 or 25 twice a year. And no jit, which never pays for statements like ours.
_EVERYWHERE: Final = {"default_transaction_isolation": "read committed", "timezone": "UTC", "jit": "off"}

# Statements are planned once and go through indexes only, by nested loops: the one good plan for each of them, at any
# size of table and batch. Planning them anew costs more than running them (docs/decisions/0003).
_PLANNED: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

CLIENT: Final = {**_EVERYWHERE, **_PLANNED, "application_name": "stepwell"}
WORKER: Final = {**_EVERYWHERE, **_PLANNED, "application_name": "stepwell worker"}

# For what is asked rarely, and of which no plan is good for all arguments and tables.
PLAN_ANEW: Final = "set local plan_cache_mode = force_custom_plan"


# The driver asks about these types when it first meets them: better when the first connection is made than in the way
# of a step.
_TYPES = """select $1::bigint[], $2::integer[], $3::smallint[], $4::boolean[], $5::text[], $6::interval[],
                   $7::timestamptz[], $8::uuid[]"""


class Queryable(Protocol):
    """Something statements can be sent to: the database, or one transaction of it."""

    async def fetch(self, name: str, *args: object) -> list[Row]: ...


class Counting(Protocol):
    """A pool that counts what is sent through it; what an operation costs is a test."""

    statements: int


class _Connection(LearnedConnection):
    """A connection that the pool takes back as it is: we leave nothing on it, and a reset costs a round trip."""

    def get_reset_query(self) -> str:
        return ""


class Session:
    """One connection, nearly always inside a transaction."""

    def __init__(self, connection: asyncpg.Connection, pool: Counting) -> None:
        self._connection = connection
        self._pool = pool

    async def fetch(self, name: str, *args: object) -> list[Row]:
        self._pool.statements += 1
        with translated():
            return await self._connection.fetch(statement(name), *args)

    async def copy(self, table: str, columns: Sequence[str], rows: bytes) -> None:
        """Insert rows that are in the binary form of COPY."""
        self._pool.statements += 1
        # Bytes would be taken for a path. A file is read in a thread, and waits for those of others; after what an
        # iterator has given, the driver waits for room to send, and is not told that the connection is lost.
        source: Any = memoryview(rows)
        with translated():
            await self._connection.copy_to_table(
                table, schema_name="stepwell", columns=columns, source=source, format="binary"
            )

    async def run(self, sql: str, *, patience: float | None = None) -> None:
        """Send a script of several statements, as migrations are; None: as much patience as with any statement."""
        self._pool.statements += 1
        with translated():
            await self._connection.execute(sql, timeout=patience)

    async def bound_waits(self, patience: timedelta) -> None:
        """Let the rest of the transaction wait no longer than that for each of somebody's locks."""
        await self.run(f"set local lock_timeout = {patience // timedelta(milliseconds=1)}")


class Database:
    """Connections to one Postgres. Opening it checks the server; losing it is an Outage, and it comes back."""

    def __init__(self, dsn: str, *, session: Mapping[str, str] = CLIENT, most: int = 10) -> None:
        check_url(dsn)
        self.dsn = dsn
        self._session = dict(session)
        self.statements = 0  # sent so far
        self._most = most
        self._pool: asyncpg.Pool | None = None
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
            with translated():
                self._pool = await asyncpg.create_pool(
                    # No floor: the driver would try for ever to restore it, and fill the log while the server is away.
                    self.dsn, min_size=0, max_size=self._most, connection_class=_Connection,
                    server_settings=self._session, command_timeout=COMMAND_TIMEOUT, timeout=20, init=meet_types,
                )  # fmt: skip
                async with self._pool.acquire() as connection:
                    version = int(await connection.fetchval("show server_version_num"))
                    shown = str(await connection.fetchval("show server_version"))
        except (StoreFault, ValueError, TypeError) as error:
            await self.close()
            raise DatabaseUnreachable(where(self.dsn), str(error)) from error
        except BaseException:
            await self.close()
            raise
        if version < OLDEST_SERVER:
            await self.close()
            raise ServerTooOld(shown)

    async def close(self) -> None:
        """Close all connections; one that does not answer is cut."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await close_pool(pool)

    def cut(self) -> None:
        """Break all connections without a word, as the end of a process does."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    def check_loop(self) -> None:
        """Refuse the loop that runs here unless it is the one the connections belong to."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ForeignLoop

    async def fetch(self, name: str, *args: object) -> list[Row]:
        """Send one statement on its own, committed when it answers."""
        self.statements += 1
        with translated():
            async with self._acquired() as connection:
                return await connection.fetch(statement(name), *args)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Session]:
        """One connection, for statements that are each on their own: so who sends one does not wait for it then."""
        with translated():
            async with self._acquired() as connection:
                yield Session(connection, self)

    @asynccontextmanager
    async def transaction(self, *, anew: bool = False) -> AsyncIterator[Session]:
        """Several statements, one commit; `anew` if their good plans hang on their arguments."""
        with translated():
            async with self._acquired() as connection, connection.transaction():
                session = Session(connection, self)
                if anew:
                    await session.run(PLAN_ANEW)
                yield session

    @asynccontextmanager
    async def listening(
        self, dsn: str | None, channels: Sequence[str], hear: Callable[[str, str], None], lost: Callable[[], None]
    ) -> AsyncIterator[Queryable]:
        """A connection of its own that LISTENs; `hear(channel, payload)` per notice, `lost()` when it breaks."""
        with translated():
            connection = await asyncpg.connect(
                dsn or self.dsn, connection_class=LearnedConnection,
                server_settings={"application_name": "stepwell listener"}, timeout=20, command_timeout=20,
            )  # fmt: skip
        try:
            connection.add_termination_listener(lambda _: lost())
            with translated():
                for channel in channels:
                    await connection.add_listener(channel, lambda _c, _p, name, payload: hear(name, str(payload)))
            yield Session(connection, self)
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[asyncpg.Connection]:
        if self._pool is None:
            raise EngineClosed
        self.check_loop()
        async with self._pool.acquire() as connection:
            yield connection  # type: ignore[misc]  # the pool's proxy stands in for its connection


async def close_pool(pool: asyncpg.Pool) -> None:
    """Close all connections of a pool; one that does not answer is cut."""
    try:
        await asyncio.wait_for(pool.close(), CLOSE_TIMEOUT)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


async def meet_types(connection: asyncpg.Connection) -> None:
    """Let a new connection ask about our types before anybody waits for it."""
    await connection.prepare(_TYPES)


def check_url(dsn: object) -> None:
    """Refuse what is no URL of a Postgres before anything connects."""
    if not isinstance(dsn, str):
        raise InvalidDatabaseURL(f"expected a string, got {dsn!r}")
    scheme, found, _ = dsn.partition("://")
    if not found:
        raise InvalidDatabaseURL("it has no scheme")
    if scheme not in {"postgresql", "postgres"}:
        raise InvalidDatabaseURL(f"the scheme {scheme!r} is not one of a Postgres")


def where(dsn: str) -> str:
    """The URL without its password, for messages."""
    scheme, _, rest = dsn.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{host}"
