"""SQLAlchemy 2's connections and sessions: the async ones for the engine, the blocking ones for engine.sync."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from stepwell._store.drivers.asyncpg import check_loop
from stepwell._store.drivers.call import Borrowed, Call, Lent, Rows, refusals
from stepwell.errors import InvalidConnection

# A plain cursor, even if the connection uses server-side cursors for the caller's own queries.
_OPTIONS: Final[dict[str, Any]] = {"stream_results": False, "yield_per": None}


def borrow(connection: Any) -> Borrowed:
    if isinstance(connection, Connection | Session | scoped_session):
        raise InvalidConnection("is blocking; call engine.sync instead, or use SQLAlchemy's async twin of it")
    if not isinstance(connection, AsyncConnection | AsyncSession | async_scoped_session):
        raise InvalidConnection(_no_connection(connection))
    return _AsyncConnection(connection)


def lend(connection: Any) -> Lent:
    if isinstance(connection, AsyncConnection | AsyncSession | async_scoped_session):
        raise InvalidConnection("is async; pass it to the engine itself, not to engine.sync")
    if not isinstance(connection, Connection | Session | scoped_session):
        raise InvalidConnection(_no_connection(connection))
    return _Connection(connection)


def _no_connection(given: object) -> str:
    return f"{type(given).__name__} is neither a connection nor a session of SQLAlchemy; open one and pass that"


class _AsyncConnection(Borrowed):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, call: Call) -> Rows:
        given = self._connection
        try:
            connection = given if isinstance(given, AsyncConnection) else await given.connection()
            if connection.sync_connection is None:
                raise InvalidConnection("is not open; use it inside `async with engine.connect() as connection:`")
            _check(connection.sync_connection)
            if connection.dialect.driver == "asyncpg":
                check_loop(connection.sync_connection.connection.driver_connection)
        except InvalidRequestError as error:
            raise InvalidConnection(f"cannot be used: {error}") from error
        with refusals():
            sent = await connection.execute(text(call.sql(_placeholder)), _parameters(call), execution_options=_OPTIONS)
            return list(sent)


class _Connection(Lent):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch(self, call: Call) -> Rows:
        given = self._connection
        try:
            connection = given if isinstance(given, Connection) else given.connection()
            _check(connection)
        except InvalidRequestError as error:
            raise InvalidConnection(f"cannot be used: {error}") from error
        with refusals():
            sent = connection.execute(text(call.sql(_placeholder)), _parameters(call), execution_options=_OPTIONS)
            return list(sent)


def _check(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        raise InvalidConnection(f"is one of {connection.dialect.name}; Stepwell's tables are in Postgres")
    if connection.closed:
        raise InvalidConnection("is closed; pass one that is open")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise InvalidConnection("is in autocommit mode; use one with a transaction that you commit")


def _placeholder(number: int) -> str:
    return f":p{number}"


def _parameters(call: Call) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(call.values, start=1)}
