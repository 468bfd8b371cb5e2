"""Checks the server of a pool, and a pooler in front of it: version, transactions, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final

import asyncpg

from stepwell._core.store_errors import StoreFault, Unsettled
from stepwell._store.connection.driver_errors import begun_transaction
from stepwell._store.connection.settings import EngineConnection, check_settings
from stepwell.errors import DatabaseUnreachable, ServerTooOld, UnsuitablePooler

OLDEST_SERVER = 150_000
POOLER_TRIES = 3
_LOST_STATEMENTS = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

# The state that a session must keep between statements: its settings, and the resulting isolation level.
_KEPT: Final = "select array(select current_setting(name) from unnest($1::text[]) as name)"
_ISOLATION: Final = {"transaction_isolation": "read committed"}


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Raise errors during the opening of a pool as errors that explain the cause."""
    try:
        yield
    except (StoreFault, ValueError, TypeError) as error:
        if isinstance(error, Unsettled):
            raise UnsuitablePooler(where(dsn), str(error)) from error
        if "statement pooling mode" in str(error):
            raise UnsuitablePooler(where(dsn), "it allows no transactions") from error
        if isinstance(error.__cause__, _LOST_STATEMENTS):
            raise UnsuitablePooler(where(dsn), "it does not keep prepared statements") from error
        raise DatabaseUnreachable(where(dsn), str(error)) from error


async def check_version(connection: EngineConnection) -> None:
    """Refuse a server that is too old."""
    if int(await connection.fetchval("show server_version_num")) < OLDEST_SERVER:
        raise ServerTooOld(str(await connection.fetchval("show server_version")))


async def check_kept(connection: EngineConnection, settings: Mapping[str, str]) -> None:
    """Raise Unsettled if the session has lost its settings."""
    wanted = {**settings, **_ISOLATION}
    check_settings(wanted, await connection.fetchval(_KEPT, [*wanted]))


async def check_pooler(
    first: EngineConnection, other_connection: AbstractAsyncContextManager[EngineConnection], dsn: str
) -> None:
    """Refuse a pooler in transaction mode: two of our connections would share one server connection, or one would wait
    for the transaction of the other."""
    try:
        async with other_connection as second:
            for _ in range(POOLER_TRIES):
                mine = await first.fetchval("select pg_backend_pid()")
                async with begun_transaction(second):
                    other = await second.fetchval("select pg_backend_pid()")
                    again = await first.fetchval("select pg_backend_pid()")
                if other == mine or again != mine:
                    raise UnsuitablePooler(where(dsn), "it uses another connection to Postgres for each transaction")
    except TimeoutError as error:
        raise UnsuitablePooler(where(dsn), "a second connection got no response in time while the first was open "
                               "(pool_mode, or a default_pool_size of 1)") from error


def where(dsn: str) -> str:
    """The URL without its password, for messages."""
    scheme, _, rest = dsn.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{host}"
