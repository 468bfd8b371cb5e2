"""Distinguishes a statement that takes long from a dark connection: one that gets no response any more."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final, Protocol

import asyncpg

# A process with a state that changed just now may have just received the statement, or just replied.
_IS_AT_WORK: Final = """
select state in ('active', 'disabled') and wait_event is distinct from 'ClientRead'
       or state_change > clock_timestamp() - interval '0.5 s'
from pg_stat_activity where pid = $1"""


class Watched(Protocol):
    """A connection with statements that may take long."""

    backend: int
    """The server process behind it."""
    patience: float
    """Seconds without a reply after which the connection is ended unless the server is working on it."""
    was_cut: bool

    @property
    def unsent(self) -> int:
        """Bytes that the server has not received yet."""
        ...

    def terminate(self) -> None: ...

    async def open_beside(self, application_name: str) -> Any:
        """A new connection to the same server: the existing ones may be dark too."""


class Silence:
    """While the block waits for a reply, checks periodically whether the server is working on the statement. If not,
    terminates the connection, so that the statement raises. A server that receives data counts as working."""

    __slots__ = ("_connection", "_look", "_loop", "_timer", "_unsent")

    def __init__(self, connection: Watched) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    @property
    def _pause(self) -> float:
        return self._connection.patience / 2  # the other half is for the check

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._pause / 2, self._note_unsent)

    def _note_unsent(self) -> None:
        self._unsent = self._connection.unsent
        self._timer = self._loop.call_later(self._pause / 2, self._begin_to_look)

    def _begin_to_look(self) -> None:
        if self._connection.unsent < self._unsent:
            self._wait()
            return
        self._look = self._loop.create_task(self._end_if_dark(), name="stepwell silence")

    async def _end_if_dark(self) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(self._pause):
                is_at_work = await _is_at_work(connection)
        except asyncpg.PostgresError:
            is_at_work = True  # the server responds, but refuses this query
        except (OSError, TimeoutError, asyncpg.InterfaceError):
            is_at_work = False
        if is_at_work:
            self._wait()
        else:
            connection.was_cut = True
            connection.terminate()


async def _is_at_work(connection: Watched) -> bool:
    fresh = await connection.open_beside("stepwell look")
    try:
        return bool(await fresh.fetchval(_IS_AT_WORK, connection.backend))  # None if the process no longer exists
    finally:
        fresh.terminate()
