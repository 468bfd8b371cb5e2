"""Callers' connections: detects the driver of each, and sends statements on it.

Each driver has one file with two functions: `borrow(connection)` for async connections, `lend(connection)` for blocking
ones. Both refuse connections that cannot carry the caller's transaction, and say what to do instead.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from stepwell._store.drivers.call import Borrowed, Call, Lent
from stepwell.errors import InvalidConnection

DRIVERS = ("asyncpg", "psycopg", "sqlalchemy", "django")

__all__ = ["Borrowed", "Call", "Lent", "borrow", "lend"]


def borrow(connection: object) -> Borrowed:
    """A caller's async connection; raises InvalidConnection if it cannot carry a call."""
    if isinstance(connection, Borrowed):  # a blocking one, relayed by engine.sync
        return connection
    found: Borrowed = _driver_of(connection).borrow(connection)
    return found


def lend(connection: object) -> Lent:
    """A caller's blocking connection, for `engine.sync`; raises InvalidConnection if it cannot carry a call."""
    found: Lent = _driver_of(connection).lend(connection)
    return found


def _driver_of(connection: object) -> ModuleType:
    """The file of its driver. Imports no driver that the caller has not imported already."""
    for kind in type(connection).__mro__:
        driver = kind.__module__.partition(".")[0]
        if driver in DRIVERS:
            return import_module(f"{__name__}.{driver}")
    raise InvalidConnection(
        f"{type(connection).__name__} is not a connection that Stepwell supports; "
        "pass one of asyncpg, psycopg 3, SQLAlchemy 2 or Django"
    )
