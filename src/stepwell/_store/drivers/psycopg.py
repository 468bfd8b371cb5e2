"""psycopg 3's connections: async for the engine, blocking for engine.sync."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from stepwell._store.drivers.call import Borrowed, Call, Lent, Rows, refusals
from stepwell.errors import InvalidConnection


def borrow(connection: Any) -> Borrowed:
    if isinstance(connection, psycopg.Connection):
        raise InvalidConnection("is blocking; call engine.sync instead, or use psycopg.AsyncConnection")
    _check(connection)
    return _AsyncConnection(connection)


def lend(connection: Any) -> Lent:
    if isinstance(connection, psycopg.AsyncConnection):
        raise InvalidConnection("is async; pass it to the engine itself, not to engine.sync")
    _check(connection)
    return _Connection(connection)


def _check(connection: Any) -> None:
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise InvalidConnection(f"{type(connection).__name__} is not a psycopg connection; pass the connection itself")
    if connection.closed:
        raise InvalidConnection("is closed; pass one that is open")
    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise InvalidConnection("its transaction has failed; roll it back first")
    if status is TransactionStatus.IDLE and connection.autocommit:
        with_ = "async with" if isinstance(connection, psycopg.AsyncConnection) else "with"
        raise InvalidConnection(f"is in autocommit mode: `{with_} connection.transaction():` must be around the call")


# The cursors below do not use the connection's cursor_factory: a raw cursor has other placeholders.


class _AsyncConnection(Borrowed):
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetch(self, call: Call) -> Rows:
        with refusals():
            async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(call.sql(_placeholder).encode(), call.values)
                return await cursor.fetchall()


class _Connection(Lent):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def fetch(self, call: Call) -> Rows:
        with refusals(), psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(call.sql(_placeholder).encode(), call.values)
            return cursor.fetchall()


def _placeholder(_: int) -> str:
    return "%s"
