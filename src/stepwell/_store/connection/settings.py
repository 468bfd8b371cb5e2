"""How a connection of the engine is opened and ended: timeouts, settings, keepalives."""

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

LONGEST = 10.0  # seconds: with any lease, no statement waits longer on a dead connection
SHORTEST = 1.0  # seconds: with any lease, a server under load has this long to reply
SHORTEST_BEAT = 0.25
CONNECT_LEAST = 2.0  # for a new connection: the handshakes of TLS and password take several round trips
SERVER_SHARE = 0.8  # of the client's timeout: the server ends a slow statement before the client gives up
CANCEL_PATIENCE = 2.0
CLOSE_TIMEOUT = 0.3  # an engine closes in time, whatever the server does
LOCK_WAIT = 0.1  # of a worker, for one lock: it retries later, and handles other rows meanwhile
MOST_NAMED = 3  # missing settings that one error names
PROBES = 3  # unanswered keepalive probes after which a connection is dead

# The driver queries these types when it first sees them: this statement makes it do so at connect time, not during a
# step. It also sends the settings, and returns what the session then has: one round trip, and a pooler can neither
# refuse the settings nor drop them unnoticed. CASE guarantees the order of evaluation.
# A new timeline means that the server may have lost commits (docs/decisions/0025).
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
    """The timeouts of a pool's connections, in seconds."""

    answer: float = LONGEST  # without a reply for this long, the client terminates the connection
    idle: float = LONGEST  # without a statement for this long, the server ends a transaction and frees its locks
    lock: float | None = None  # the server ends a wait for a lock after this time

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
        """Seconds that opening a connection may take."""
        return max(self.answer, CONNECT_LEAST)

    def settings(self) -> dict[str, str]:
        """The settings of the engine's own sessions."""
        bounded = {"statement_timeout": _milliseconds(self.answer * SERVER_SHARE), **self.tcp()}
        if self.lock is not None:
            bounded["lock_timeout"] = _milliseconds(self.lock)
        return bounded

    def tcp(self) -> dict[str, str]:
        """The settings by which the server detects a dead client; the only ones of a step's connection."""
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
        """Whole seconds before the first keepalive probe, and between two probes."""
        return max(1, int(self.idle / 2)), max(1, int(self.idle / 2 / PROBES))


class SettledConnection(LearnedConnection):
    """A connection that sends its settings after it was opened: a pooler would refuse or drop settings in the startup
    message."""

    _loop: asyncio.AbstractEventLoop  # attributes of the driver that its stubs omit
    _transport: Any
    _protocol: Any
    _addr: Any
    _params: Any

    was_cut = False
    """Whether it was terminated because a reply did not arrive in time."""
    settings: Mapping[str, str] = {}
    """The settings that its session was given."""
    backend = 0
    """The pid of its server process, as the server reports it."""
    timeline: str | None = None
    """The timeline of the server when it was opened; None if the server does not report it."""
    dsn = ""
    bounds = Bounds()
    patience = LONGEST
    """Seconds that a long statement may take before the client checks that the server is working on it."""

    @property
    def is_pooled(self) -> bool:
        """Whether it goes through a pooler, which reports another pid to its clients."""
        return self.get_server_pid() != self.backend

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return int(self._transport.get_write_buffer_size())

    async def settle(
        self, dsn: str, settings: Mapping[str, str], bounds: Bounds, timelines: Timelines | None = None
    ) -> None:
        """Set up the session before the connection is used; Unsettled if a pooler prevents that, Outage if the server
        is on another timeline than the worker."""
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
        """Open a connection to the same server, with the same bounds."""
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
        """Terminate the connection if the block takes longer; a statement in the block then raises."""
        timer = self._loop.call_later(seconds, self.terminate)
        try:
            yield
        finally:
            timer.cancel()


class EngineConnection(SettledConnection):
    """A connection that is terminated at once when a statement times out or is cancelled.

    The driver would send a cancel request and wait for the reply on the same connection, which never arrives if that
    is dark. This class sends the request over another connection, and does not wait.
    """

    def _cancel_current_command(self, waiter: Any, cancel_waiter: Any = None) -> None:
        """The driver calls this when a statement times out, or its task is cancelled."""
        self.was_cut = True
        task = self._loop.create_task(self._ask_to_cancel(self._protocol), name="stepwell cancel")
        _cancelling.add(task)
        task.add_done_callback(_cancelling.discard)
        self._loop.call_soon(self.terminate)  # after the driver has raised the reason in the statement

    async def _ask_to_cancel(self, protocol: Any) -> None:
        """Cancel the statement on the server: otherwise its backend would continue, or wait for a lock."""
        cancel: Any = vars(connect_utils)["_cancel"]
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                await cancel(
                    loop=self._loop, addr=self._addr, params=self._params, backend_pid=protocol.backend_pid,
                    backend_secret=protocol.backend_secret,
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - optional: the server's timeouts end the statement too
            log.debug("database: a statement could not be cancelled: %s", error)


class PatientConnection(SettledConnection):
    """A connection for authors: statements may take long, and a cancelled statement leaves it usable. If it goes dark,
    or a cancel request gets no reply, it is terminated."""

    def __init__(self, protocol: Any, *rest: Any) -> None:
        watched: Any = _WatchedProtocol(protocol, self)
        super().__init__(watched, *rest)

    async def _cancel(self, waiter: Any, cancel_waiter: Any = None) -> None:
        try:
            async with asyncio.timeout(CANCEL_PATIENCE):
                await super()._cancel(waiter, cancel_waiter)  # type: ignore[misc]  # the stubs omit it
        finally:
            if cancel_waiter is not None and not cancel_waiter.done():
                self.terminate()


class _WatchedProtocol:
    """The driver's protocol of a connection: watches every wait for a reply, however an author sends a statement.

    Except a COPY from the author: there the server waits for data, as it does on a dark connection.
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


_cancelling: set[asyncio.Task[None]] = set()  # references: a task without one may be collected


Settled = TypeVar("Settled", bound=SettledConnection)


async def open_pool(
    dsn: str, kind: type[Settled], most: int, settings: Mapping[str, str], bounds: Bounds, *, answer: float | None,
    timelines: Timelines | None = None,
) -> asyncpg.Pool:
    """A pool that opens connections when they are needed."""

    async def settle(connection: Settled) -> None:
        async with asyncio.timeout(bounds.connect):
            await connection.settle(dsn, settings, bounds, timelines)

    pool: asyncpg.Pool = await asyncpg.create_pool(  # type: ignore[call-overload]  # init receives a connection of this class
        # min_size 0: otherwise the driver would reconnect forever during an outage, and fill the log.
        dsn, min_size=0, max_size=most, connection_class=kind, command_timeout=answer, timeout=bounds.connect,
        server_settings={"application_name": settings["application_name"]}, init=settle,
    )  # fmt: skip
    return pool


def drop_idle(pool: asyncpg.Pool) -> None:
    """Terminate the idle connections of a pool: if one connection is dark, most others are too."""
    driven: Any = pool
    for holder in driven._holders:  # noqa: SLF001 - its public method waits for the server
        if holder.is_idle() and holder.is_connected():
            holder.terminate()


async def close_pool(pool: asyncpg.Pool) -> None:
    """Close all connections of a pool; terminate those that do not respond."""
    try:
        await asyncio.wait_for(pool.close(), CLOSE_TIMEOUT)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


def guard(transport: Any, bounds: Bounds) -> None:
    """Let the kernel detect that the peer of a TCP connection is gone."""
    own = transport.get_extra_info("socket")
    if own is None or own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    idle, interval = bounds.keepalive
    wanted = {"TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": PROBES,
              "TCP_USER_TIMEOUT": int(bounds.idle * 1000)}  # fmt: skip
    with suppress(OSError, NotImplementedError):  # not supported by the kernel or the loop
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_settings(settings: Mapping[str, str], shown: Sequence[str | None]) -> None:
    """Compare the settings that a session was given with those it shows, in the same order; Unsettled if one differs.
    Settings of TCP are not compared: on a Unix socket they show 0."""
    wrong = [
        f"{name} is {has} instead of {given}"
        for (name, given), has in zip(settings.items(), shown, strict=True)
        if not name.startswith("tcp_") and (has is None or _as_given(has) != given)
    ]
    if wrong:
        more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise Unsettled(f"it drops what set_config(…) sets: {', '.join(wrong[:MOST_NAMED])}{more}")


def _as_given(shown: str) -> str:
    """A shown setting in the form in which it is sent: Postgres shows a time of 8000 as 8s."""
    time = re.fullmatch(r"([0-9]+)(ms|s|min|h|d)", shown)
    return shown if time is None else str(int(time[1]) * _MILLISECONDS[time[2]])


def resetting(settings: Mapping[str, str]) -> str:
    """A script that sets the settings of a session again."""
    quoted = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    return f"select {quoted};"


def _within(seconds: float, least: float) -> float:
    return min(max(seconds, least), LONGEST)


def _milliseconds(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))
