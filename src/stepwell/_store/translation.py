"""From the driver's errors to ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from stepwell._core.faults import Conflict, Contention, Outage, Refusal, StoreFault

_OUTAGE_CLASSES = ("08", "57", "53", "58")  # connection, operator intervention, resources, system
_CONTENTION_STATES = frozenset({"40001", "40P01", "55P03"})
_UNIQUE_VIOLATION = "23505"


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _kind(error)(_describe(error)) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError, EOFError) as error:
        # The driver's "internal" error is what a statement gets on a connection that the server has just ended.
        if isinstance(error, asyncpg.DataError):
            raise Refusal(_describe(error)) from error
        raise Outage(_describe(error)) from error


def _kind(error: asyncpg.PostgresError) -> type[StoreFault]:
    state = getattr(error, "sqlstate", None) or ""
    if state == _UNIQUE_VIOLATION:
        return Conflict
    if state in _CONTENTION_STATES:
        return Contention
    if state.startswith(_OUTAGE_CLASSES):
        return Outage
    return Refusal


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
