"""Django's connections, for engine.sync."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from stepwell._store.drivers.call import Borrowed, Call, Lent, Rows, refusals
from stepwell.errors import InvalidConnection


def borrow(connection: Any) -> Borrowed:
    raise InvalidConnection(f"{type(connection).__name__} is Django's, which is blocking; call engine.sync instead")


def lend(connection: Any) -> Lent:
    if not isinstance(connection, BaseDatabaseWrapper | ConnectionProxy):
        raise InvalidConnection(f"{type(connection).__name__} is not a connection; pass django.db.connection")
    if connection.vendor != "postgresql":
        raise InvalidConnection(f"is one of {connection.vendor}; Stepwell's tables are in Postgres")
    if connection.needs_rollback:
        raise InvalidConnection("its transaction has failed; leave the atomic block first")
    if not connection.in_atomic_block and connection.get_autocommit():
        raise InvalidConnection("is in autocommit mode: `with transaction.atomic():` must be around the call")
    return _Connection(connection)


class _Connection(Lent):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch(self, call: Call) -> Rows:
        with refusals(), self._connection.cursor() as cursor:
            cursor.execute(call.sql(lambda _: "%s"), call.values)
            return list(cursor.fetchall())
