"""How a connection of the engine is made and how it ends: its timeouts, its settings, its keepalives."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg import connect_utils

from stepwell._core.store_errors import Unsettled
from stepwell._store.connection.dark_connections import Silence
from stepwell._store.connection.timeline import IN_RECOVERY, Timelines
from stepwell._store.connection.type_cache import LearnedConnection

log = logging.getLogger("stepwell")

LONGEST = 10.0  # seconds: whatever the lease is, nothing of ours stands longer on a connection that is dead
SHORTEST = 1.0  # whatever the lease is, a server under load has this long to answer
SHORTEST_BEAT = 0.25
CONNECT_LEAST = 2.0  # a new connection: a handshake of TLS and of the password takes several round trips
SERVER_SHARE = 0.8  # of the client's timeout: the server ends a slow statement before the client gives up
CANCEL_PATIENCE = 2.0
CLOSE_TIMEOUT = 0.3  # an engine ends in time, whatever the server does
LOCK_WAIT = 0.1  # of a worker, for one lock: what needs it is tried again, and other rows meanwhile
MOST_NAMED = 3  # settings that did not arrive, in one error
PROBES = 3  # keepalive probes without an answer, until a connection is dead

# The driver asks about these types when it first meets them: better when the connection is made than in the way of a
# step. The same statement brings the settings, and tells what the session has then: one round trip, and no pooler
# between refuses them, or drops them unseen. CASE, since nothing else says what is evaluated first.
# A new timeline says that the server may have lost commits (docs/decisions/0025).
_SETTLE: Final = """
select array(select case when set_config(s.name, s.value, false) is not null then current_setting(s.name) end
             from unnest($1::text[], $2::text[]) as s(name, value)) as shown,
       pg_backend_pid() as backend, $3::bigint[], $4::integer[], $5::smallint[], $6::boolean[], $7::interval[],
       $8::timestamptz[], $9::uuid[]"""
_TIMELINE: Final = f""",
       case when pg_is_in_recovery() then '{IN_RECOVERY}'
            else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end as timeline"""
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NO_TIMELINE: Final = ", null as timeline"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long, in seconds, a connection of one pool waits, and how long others wait for it."""

    answer: float = LONGEST  # after so long without an answer the client terminates the connection
    idle: float = LONGEST  # after so long without a statement the server ends a transaction, and its locks
    lock: float | None = None  # after so long the server ends a wait for a lock

    @classmethod
    def of_client(cls, lease: timedelta) -> Bounds:
        seconds = lease.total_seconds()
        return cls(_within(seconds / 2, SHORTEST), _within(seconds, SHORTEST))

    @classmethod
    def of_worker(cls, lease: timedelta) -> Bounds:
        seconds = lease.total_seconds()
        return cls(_within(seconds / 2, SHORTEST), _within(seconds, SHORTEST), LOCK_WAIT)

    @classmethod
    def of_heartbeat(cls, lease: timedelta, beat: timedelta) -> Bounds:
        return cls(_within(beat.total_seconds(), SHORTEST_BEAT), _within(lease.total_seconds(), SHORTEST))

    @property
    def connect(self) -> float:
        """Seconds that making a connection may take."""
        return max(self.answer, CONNECT_LEAST)

    def settings(self) -> dict[str, str]:
        """The settings of a session of the engine's own."""
        bounded = {"statement_timeout": _milliseconds(self.answer * SERVER_SHARE), **self.tcp()}
        if self.lock is not None:
            bounded["lock_timeout"] = _milliseconds(self.lock)
        return bounded

    def tcp(self) -> dict[str, str]:
        """The settings by which the server finds out that its client is gone; all that a step's connection gets."""
        idle, interval = self.keepalive
        return {
            "idle_in_transaction_session_timeout": _milliseconds(self.idle),
            "tcp_keepalives_idle": str(idle),
            "tcp_keepalives_interval": str(interval),
            "tcp_keepalives_count": str(PROBES),
            "tcp_user_timeout": _milliseconds(self.idle),
        }

    @property
    def keepalive(self) -> tuple[int, int]:
        """Whole seconds until the first keepalive probe, and between two."""
        return max(1, int(self.idle / 2)), max(1, int(self.idle / 2 / PROBES))


class SettledConnection(LearnedConnection):
    """A connection that brings its settings along after it was made: a pooler between refuses or drops those that come
    with the first message."""

    _loop: asyncio.AbstractEventLoop  # what the driver has, and the stubs leave out
    _transport: Any
    _protocol: Any
    _addr: Any
    _params: Any

    was_cut = False
    """Whether it was ended because an answer was not waited for any longer."""
    settings: Mapping[str, str] = {}
    """What its session was given when it was made."""
    backend = 0
    """The number of the server process behind it, as the server itself says."""
    timeline: str | None = None
    """The timeline of the server when it was made; None if the server does not tell."""
    dsn = ""
    bounds = Bounds()
    patience = LONGEST
    """Seconds that a statement which may take long is waited for, before the server must show that it works on it."""

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands between: it gives numbers of its own to its clients."""
        return self.get_server_pid() != self.backend

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return int(self._transport.get_write_buffer_size())

    async def settle(
        self, dsn: str, settings: Mapping[str, str], bounds: Bounds, timelines: Timelines | None = None
    ) -> None:
        """Make the session what the engine needs, before the connection is used; Unsettled if a pooler prevents that,
        Outage if it is on a timeline that its worker is not on."""
        self.dsn = dsn
        self.settings = settings
        self.bounds = bounds
        self.patience = bounds.answer
        guard(self._transport, bounds)
        given = ([*settings], [*settings.values()], *[None] * 7)
        try:
            [row] = await self.fetch(_SETTLE + _TIMELINE, *given)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError):
            [row] = await self.fetch(_SETTLE + _NO_TIMELINE, *given)
        check_settings(settings, row["shown"])
        self.backend, self.timeline = row["backend"], row["timeline"]
        if timelines is not None:
            timelines.admit(self.timeline)

    async def open_beside(self, application_name: str) -> EngineConnection:
        """Make a connection to the same server, with the same bounds."""
        bounds = self.bounds
        made: EngineConnection = await asyncpg.connect(
            self.dsn, connection_class=EngineConnection, timeout=bounds.connect, command_timeout=bounds.answer,
            server_settings={"application_name": application_name},
        )  # fmt: skip
        try:
            await made.settle(self.dsn, {"application_name": application_name, **bounds.settings()}, bounds)
        except BaseException:
            made.terminate()
            raise
        return made

    @contextmanager
    def ending_after(self, seconds: float) -> Iterator[None]:
        """End the connection unless the block is over by then; a caller that waits for a reply learns of the loss."""
        timer = self._loop.call_later(seconds, self.terminate)
        try:
            yield
        finally:
            timer.cancel()


class EngineConnection(SettledConnection):
    """A connection that ends at once when an answer is not waited for any longer.

    The driver's way is to send a cancel and to wait for the answer to it on the same connection, which never comes if
    that is dark. Here the server is asked to cancel over a connection of its own, and nobody waits.
    """

    def _cancel_current_command(self, waiter: Any, cancel_waiter: Any = None) -> None:
        """Called by the driver when a statement's time is over, or its task was cancelled."""
        self.was_cut = True
        task = self._loop.create_task(self._ask_to_cancel(self._protocol), name="stepwell cancel")
        _cancelling.add(task)
        task.add_done_callback(_cancelling.discard)
        self._loop.call_soon(self.terminate)  # after the driver has told the statement why

    async def _ask_to_cancel(self, protocol: Any) -> None:
        """Let the server end what it was sent: else its backend goes on, or waits for a lock."""
        cancel: Any = vars(connect_utils)["_cancel"]
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                await cancel(
                    loop=self._loop, addr=self._addr, params=self._params, backend_pid=protocol.backend_pid,
                    backend_secret=protocol.backend_secret,
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - a courtesy: the server's own timeouts end the statement as well
            log.debug("database: a statement could not be cancelled: %s", error)


class PatientConnection(SettledConnection):
    """A connection of an author: its statements may take long, and a cancelled statement leaves it usable. One that
    goes dark, or does not answer a cancel, is ended."""

    def __init__(self, protocol: Any, *rest: Any) -> None:
        watched: Any = _WatchedProtocol(protocol, self)
        super().__init__(watched, *rest)

    async def _cancel(self, waiter: Any, cancel_waiter: Any = None) -> None:
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                await super()._cancel(waiter, cancel_waiter)  # type: ignore[misc]  # the stubs leave it out
        finally:
            if cancel_waiter is not None and not cancel_waiter.done():
                self.terminate()


class _WatchedProtocol:
    """The driver's protocol of a connection: what waits for an answer is watched, whichever way an author sends it.

    A COPY from the author is not: the server waits for its data, as it would on a connection that is dark.
    """

    _ASKS = frozenset({
        "prepare", "bind", "execute", "bind_execute", "bind_execute_many", "query", "copy_out", "close_statement",
        "close_portal",
    })  # fmt: skip

    def __init__(self, protocol: Any, connection: PatientConnection) -> None:
        self._protocol = protocol
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._protocol, name)
        if name not in self._ASKS:
            return found

        async def ask(*args: Any, **options: Any) -> Any:
            with Silence(self._connection):
                return await found(*args, **options)

        return ask


_cancelling: set[asyncio.Task[None]] = set()  # a task that nobody holds may be collected


Settled = TypeVar("Settled", bound=SettledConnection)


async def open_pool(
    dsn: str, kind: type[Settled], most: int, settings: Mapping[str, str], bounds: Bounds, *, answer: float | None,
    timelines: Timelines | None = None,
) -> asyncpg.Pool:
    """A pool of connections that are made when they are needed."""

    async def settle(connection: Settled) -> None:
        async with asyncio.timeout(bounds.connect):
            await connection.settle(dsn, settings, bounds, timelines)

    pool: asyncpg.Pool = await asyncpg.create_pool(  # type: ignore[call-overload]  # init is given what it makes
        # No floor: the driver would try for ever to restore it, and fill the log while the server is away.
        dsn, min_size=0, max_size=most, connection_class=kind, command_timeout=answer, timeout=bounds.connect,
        server_settings={"application_name": settings["application_name"]}, init=settle,
    )  # fmt: skip
    return pool


def drop_idle(pool: asyncpg.Pool) -> None:
    """End the connections of a pool that nobody uses: where one has gone dark, its siblings mostly have, too."""
    driven: Any = pool
    for holder in driven._holders:  # noqa: SLF001 - the driver's own way waits for the other side to answer
        if holder.is_idle() and holder.is_connected():
            holder.terminate()


async def close_pool(pool: asyncpg.Pool) -> None:
    """Close all connections of a pool; one that does not answer is cut."""
    try:
        await asyncio.wait_for(pool.close(), CLOSE_TIMEOUT)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


def guard(transport: Any, bounds: Bounds) -> None:
    """Let the kernel find out that the other side of a TCP connection is gone."""
    own = transport.get_extra_info("socket")
    if own is None or own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    idle, interval = bounds.keepalive
    wanted = {"TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": PROBES,
              "TCP_USER_TIMEOUT": int(bounds.idle * 1000)}  # fmt: skip
    with suppress(OSError, NotImplementedError):  # a kernel, or a loop, that does not have them
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_settings(settings: Mapping[str, str], shown: Sequence[str | None]) -> None:
    """Compare what a session was given with what it shows, in the same order; Unsettled if something is missing. The
    settings of TCP are not compared: a Unix socket has none of them, and shows 0."""
    wrong = [
        f"{name} is {has} instead of {given}"
        for (name, given), has in zip(settings.items(), shown, strict=True)
        if not name.startswith("tcp_") and (has is None or _as_given(has) != given)
    ]
    if wrong:
        more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise Unsettled(f"it drops what set_config(…) sets: {', '.join(wrong[:MOST_NAMED])}{more}")


def _as_given(shown: str) -> str:
    """A setting as it is sent: Postgres shows a time of 8000 as 8s."""
    time = re.fullmatch(r"([0-9]+)(ms|s|min|h|d)", shown)
    return shown if time is None else str(int(time[1]) * _MILLISECONDS[time[2]])


def resetting(settings: Mapping[str, str]) -> str:
    """A script that brings the settings of a session again."""
    quoted = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    return f"select {quoted};"


def _within(seconds: float, least: float) -> float:
    return min(max(seconds, least), LONGEST)


def _milliseconds(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))
