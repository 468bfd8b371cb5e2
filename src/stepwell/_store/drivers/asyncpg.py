"""asyncpg's connections."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from stepwell._store.drivers.call import Borrowed, Call, Lent, Rows, refusals
from stepwell.errors import InvalidConnection


def borrow(connection: Any) -> Borrowed:
    if isinstance(connection, asyncpg.Pool):
        raise InvalidConnection("is a pool; acquire a connection of it, open a transaction, and pass that connection")
    if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        raise InvalidConnection(f"{type(connection).__name__} is not an asyncpg connection")
    check_loop(connection)
    try:
        is_closed, is_in_transaction = connection.is_closed(), connection.is_in_transaction()
    except asyncpg.InterfaceError as error:  # it was released
        raise InvalidConnection(f"cannot be used: {error}") from error
    if is_closed:
        raise InvalidConnection("is closed; pass one that is open")
    if not is_in_transaction:
        raise InvalidConnection("has no transaction: `async with connection.transaction():` must be around the call")
    return _Connection(connection)


def lend(connection: Any) -> Lent:
    _refuse_blocking(connection)


def _refuse_blocking(connection: object) -> NoReturn:
    raise InvalidConnection(f"{type(connection).__name__} is async; pass it to the engine itself, not to engine.sync")


def check_loop(connection: Any) -> None:
    """Refuse a connection of another event loop, with a clearer message than the driver's."""
    inner = getattr(connection, "_con", connection)  # of a pool's proxy
    loop = getattr(inner, "_loop", None)
    if loop is not None and loop is not asyncio.get_running_loop():
        raise InvalidConnection("belongs to another event loop; use a connection that was opened in this one")


class _Connection(Borrowed):
    def __init__(self, connection: asyncpg.Connection[Any] | PoolConnectionProxy[Any]) -> None:
        self._connection = connection

    async def fetch(self, call: Call) -> Rows:
        with refusals():
            return [tuple(row) for row in await self._connection.fetch(call.sql("${}".format), *call.values)]
