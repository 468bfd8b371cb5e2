"""Connections that belong to the caller: which driver's they are, and one way to send a statement on each.

A driver is one file here with two functions: `borrow(connection)` for its async connections, `lend(connection)` for its
blocking ones. Both refuse what can not carry the caller's transaction, and say what to do instead.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from stepwell._store.drivers.call import Borrowed, Call, Lent
from stepwell.errors import InvalidConnection

DRIVERS = ("asyncpg", "psycopg", "sqlalchemy", "django")

__all__ = ["Borrowed", "Call", "Lent", "borrow", "lend"]


def borrow(connection: object) -> Borrowed:
    """A caller's async connection; raises InvalidConnection if it can not carry a call."""
    if isinstance(connection, Borrowed):  # a blocking one, relayed by engine.sync
        return connection
    found: Borrowed = _driver_of(connection).borrow(connection)
    return found


def lend(connection: object) -> Lent:
    """A caller's blocking connection, for `engine.sync`; raises InvalidConnection if it can not carry a call."""
    found: Lent = _driver_of(connection).lend(connection)
    return found


def _driver_of(connection: object) -> ModuleType:
    """The file of the driver that made it. Nothing is imported that the caller has not imported already."""
    for kind in type(connection).__mro__:
        driver = kind.__module__.partition(".")[0]
        if driver in DRIVERS:
            return import_module(f"{__name__}.{driver}")
    raise InvalidConnection(
        f"{type(connection).__name__} is no connection that Stepwell knows; "
        "pass one of asyncpg, psycopg 3, SQLAlchemy 2 or Django"
    )
