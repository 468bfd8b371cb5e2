"""Notices between processes: one connection that listens, one loop that sends. Hints only; polling is the floor."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack

from stepwell._core.faults import Outage
from stepwell._service import Service
from stepwell._store import notices
from stepwell._store.database import Database, Queryable

log = logging.getLogger("stepwell")

SPACING = 0.002  # between two sendings: in a stream of starts, each would otherwise have a notice of its own
PROBE_EVERY = 60.0
PROBE_PATIENCE = 5.0

Hear = Callable[[str], object]


class Notifier:
    """Delivers notices to this process and sends them to the others."""

    def __init__(self, database: Database, listener_dsn: str | None) -> None:
        self._subscribers: dict[str, list[Hear]] = {
            channel: [] for channel in (*notices.CHANNELS, notices.REVOKED_HERE)
        }
        self._takers: list[Callable[[str, int], bool]] = []
        self._senders: list[Callable[[str], bool]] = []
        self._listener = _Listener(database, listener_dsn, self._deliver)
        self._sender = _Sender(database)

    @property
    def is_listening(self) -> bool:
        """Whether notices of other processes arrive: the listener heard its own last probe."""
        return self._listener.heard

    def start_sending(self) -> None:
        self._sender.start()

    async def listen(self) -> None:
        """Start to listen, unless that has begun, and wait for the first probe's end, well or badly."""
        self._listener.start()
        await self._listener.tried.wait()

    async def stop(self) -> None:
        await self._listener.stop()
        await self._sender.finish()

    def subscribe(self, channel: str, hear: Hear) -> Callable[[], None]:
        """Hear payloads of a channel; returns how to end that."""
        self._subscribers[channel].append(hear)
        return lambda: self._subscribers[channel].remove(hear)

    def offer_to(self, take: Callable[[str, int], bool]) -> Callable[[], None]:
        """Offer new work to a worker of this process first; `take(queue, count)` says whether it has the room."""
        self._takers.append(take)
        return lambda: self._takers.remove(take)

    def announce_work(self, queue: str, count: int = 1) -> bool:
        """Some rows of a queue may be claimed. Others are told unless a worker of this process takes them all: True."""
        took = [take(queue, count) for take in self._takers]
        if any(took):
            return True
        self._sender.send(notices.WORK, queue)
        return False

    def announce_elsewhere(self, queue: str) -> None:
        """Rows of a queue may be claimed by workers of other processes."""
        self._sender.send(notices.WORK, queue)

    def announce_due(self) -> None:
        """Some row comes due later: let every worker look at the clock again."""
        self._deliver(notices.DUE, "")
        self._sender.send(notices.DUE, "")

    def announce_dispatch(self, transport: str) -> None:
        """Something is to be sent. Others are told unless a worker of this process sends it."""
        took = [take(transport) for take in self._senders]
        if not any(took):
            self._sender.send(notices.DISPATCH, transport)

    def send_by(self, take: Callable[[str], bool]) -> Callable[[], None]:
        """Offer what is to be sent to a worker of this process; `take(transport)` says whether it sends it."""
        self._senders.append(take)
        return lambda: self._senders.remove(take)

    def announce_queues(self) -> None:
        """A queue was paused or resumed: let every worker look which may be claimed from."""
        self._deliver(notices.QUEUES, "")
        self._sender.send(notices.QUEUES, "")

    def announce_idle(self) -> None:
        """Something waits for a reaper: let every one look."""
        self._deliver(notices.IDLE, "")
        self._sender.send(notices.IDLE, "")

    def announce_revoked(self, instance_id: int, fence: int) -> None:
        """An executing instance was taken from its worker: a step of an older fence shall stop."""
        self._deliver(notices.REVOKED_HERE, f"{instance_id} {fence}")
        self._sender.send(notices.REVOKED, f"{instance_id} {fence}")

    def announce_settled(self, instance_id: int) -> None:
        """A watched instance came to rest."""
        self._deliver(notices.SETTLED, str(instance_id))
        self._sender.send(notices.SETTLED, str(instance_id))

    def _deliver(self, channel: str, payload: str) -> None:
        for hear in tuple(self._subscribers.get(channel, ())):
            hear(payload)


class _Sender(Service):
    """Sends at once when idle; then what gathers until a moment after the last sending, repeats once."""

    def __init__(self, database: Database) -> None:
        super().__init__("notices")
        self._database = database
        self._pending: dict[tuple[str, str], None] = {}

    def send(self, channel: str, payload: str) -> None:
        self._pending[channel, payload] = None
        self.wake()

    async def tick(self) -> float | None:
        if self._pending:
            batch, self._pending = list(self._pending), {}
            await notices.send(self._database, batch)  # lost in an outage: a hint, and polling is the floor
            await asyncio.sleep(SPACING)
        return 0.0 if self._pending else None

    async def finish(self) -> None:
        """Send what is left, then stop."""
        await self.stop()
        if self._pending:
            try:
                await self.tick()
            except Outage:
                log.debug("notices: dropped at the end, the database is away")


class _Listener(Service):
    """Keeps one LISTEN connection; proves it by notices to itself (a pooler may swallow them silently)."""

    def __init__(self, database: Database, dsn: str | None, deliver: Callable[[str, str], None]) -> None:
        super().__init__("listener")
        self.heard = False
        self.tried = asyncio.Event()
        self._is_deaf = False  # as the last probe has shown, and as was said
        self._database = database
        self._dsn = dsn
        self._deliver = deliver
        self._stack: AsyncExitStack | None = None
        self._connection: Queryable | None = None
        self._echo: asyncio.Future[None] | None = None
        self._word = ""

    async def tick(self) -> float | None:
        try:
            if self._connection is None:
                await self._connect()
            heard = await self._probe()
        except BaseException:
            await self._hang_up()
            raise
        finally:
            self.tried.set()
        if not heard and not self._is_deaf:
            log.warning("listener: notices do not arrive (a pooler in transaction mode?); polling only")
        self.heard, self._is_deaf = heard, not heard
        return PROBE_EVERY

    async def stop(self) -> None:
        await super().stop()
        await self._hang_up()

    async def _connect(self) -> None:
        self._stack = AsyncExitStack()
        self._connection = await self._stack.enter_async_context(
            self._database.listening(self._dsn, notices.CHANNELS, self._hear, self._lost)
        )
        for channel in (notices.WORK, notices.DUE, notices.SETTLED, notices.DISPATCH):
            self._deliver(channel, "")  # something may have been missed: everybody look

    async def _probe(self) -> bool:
        assert self._connection is not None  # noqa: S101 - tick connects before it probes
        self._word = secrets.token_hex(8)
        self._echo = asyncio.get_running_loop().create_future()
        await notices.send(self._connection, [(notices.PROBE, self._word)])
        try:
            await asyncio.wait_for(self._echo, PROBE_PATIENCE)
        except TimeoutError:
            return False
        return True

    def _hear(self, channel: str, payload: str) -> None:
        if channel != notices.PROBE:
            self._deliver(channel, payload)
        elif payload == self._word and self._echo is not None and not self._echo.done():
            self._echo.set_result(None)

    def _lost(self) -> None:
        self.heard = False
        self._connection = None
        self.wake()

    async def _hang_up(self) -> None:
        self.heard = False
        self._connection = None
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()
