"""Translates the driver's errors to the engine's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg

from stepwell._core.store_errors import Conflict, Contention, Misfit, Outage, Overdue, Refusal, StoreFault

if TYPE_CHECKING:
    from stepwell._store.connection.settings import EngineConnection

# Errors that a value can cause: data, integrity, WITH CHECK, program limits, and errors that a trigger raises.
_REFUSAL_CLASSES = ("22", "23", "44", "54")
_RAISED = "P0001"
# A missing feature or name, the state of an object, an internal error: nearly always a fault of server or schema.
# All other errors are a state of the server: read only, no rights, a connection, resources, a shutdown.
_MISFIT_CLASSES = ("0A", "42", "55", "XX")
_NO_RIGHTS = "42501"
_CONTENTION_STATES = frozenset({"40001", "40P01", "55P03"})
_UNIQUE_VIOLATION = "23505"
_CANCELED = "57014"  # by statement_timeout


DRIVER_ERRORS = (
    asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError, EOFError,
)  # fmt: skip


@contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as the engine's."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise fault_of(error) from error


def fault_of(error: Exception) -> StoreFault:
    """The engine's error for an error of the driver."""
    if isinstance(error, asyncpg.PostgresError):
        return kind(error)(_describe(error))
    if isinstance(error, asyncpg.DataError):
        return Refusal(_describe(error))
    return (Overdue if isinstance(error, TimeoutError) else Outage)(_describe(error))


@asynccontextmanager
async def begun_transaction(connection: EngineConnection) -> AsyncIterator[None]:
    """A transaction on a connection. Unlike the driver's own context manager, it raises the original error after the
    connection was lost, not that it is closed."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    except BaseException:
        if not (connection.was_cut or connection.is_closed()):
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                await transaction.rollback()
        raise
    await transaction.commit()


def kind(error: asyncpg.PostgresError) -> type[StoreFault]:
    """The class of an error: only a Refusal or a Conflict can be the fault of the written values."""
    state = getattr(error, "sqlstate", None) or ""
    if state == _UNIQUE_VIOLATION:
        return Conflict
    if state in _CONTENTION_STATES:
        return Contention
    if state == _CANCELED:
        return Overdue
    if state.startswith(_REFUSAL_CLASSES) or state == _RAISED:
        return Refusal
    if state.startswith(_MISFIT_CLASSES) and state != _NO_RIGHTS:
        return Misfit
    return Outage


def _describe(error: BaseException) -> str:
    if isinstance(error, asyncpg.InternalClientError):  # of a statement on a connection that was just terminated
        return "the connection to the database was lost"
    if isinstance(error, TimeoutError) and not str(error):
        return "the database did not answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
