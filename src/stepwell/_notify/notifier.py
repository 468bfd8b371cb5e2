"""Notifications between processes: one connection listens, one loop sends. They are hints; polling is the floor."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack

from stepwell._core.store_errors import Outage
from stepwell._process.service import Service, together
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database, Queryable

log = logging.getLogger("stepwell")

SPACING = 0.002  # seconds between two batches, so that a stream of starts shares notifications
STOP_TIMEOUT = 0.3
PROBE_EVERY = 60.0
PROBE_TIMEOUT = 5.0

Hear = Callable[[str], object]


class Notifier:
    """Delivers notifications to this process and sends them to the others."""

    def __init__(self, database: Database, listener_dsn: str | None) -> None:
        self._subscribers: dict[str, list[Hear]] = {
            channel: [] for channel in (*notifications.CHANNELS, notifications.REVOKED_HERE)
        }
        self._takers: list[Callable[[str, int], bool]] = []
        self._senders: list[Callable[[str], bool]] = []
        self._listener = _Listener(database, listener_dsn, self._deliver)
        self._sender = _Sender(database)
        self._listener.outages = self._sender.outages = database.outages
        self.watch(database)

    @property
    def is_listening(self) -> bool:
        """Whether notifications of other processes arrive: the listener received its own last probe."""
        return self._listener.heard

    def start_sending(self) -> None:
        self._sender.start()

    async def listen(self) -> None:
        """Start the listener, unless it runs, and wait until the first probe has succeeded or failed."""
        self._listener.start()
        await self._listener.tried.wait()

    def watch(self, database: Database) -> None:
        """Probe the listener at once when a connection of that pool gets no response: the listener's connection is
        probably dark too."""
        database.on_dark.append(self._listener.wake)

    async def stop(self) -> None:
        until = asyncio.get_running_loop().time() + STOP_TIMEOUT
        await together(until, self._listener.stop(), self._sender.finish())

    def subscribe(self, channel: str, hear: Hear) -> Callable[[], None]:
        """Call `hear` with each payload of a channel; returns a function that ends the subscription."""
        self._subscribers[channel].append(hear)
        return lambda: self._subscribers[channel].remove(hear)

    def offer_to(self, take: Callable[[str, int], bool]) -> Callable[[], None]:
        """Offer new work to a worker of this process first; `take(queue, count)` returns whether the worker has slots
        for it."""
        self._takers.append(take)
        return lambda: self._takers.remove(take)

    def notify_work(self, queue: str, count: int = 1) -> bool:
        """Rows of a queue are claimable. Returns True if a worker of this process takes all of them; else other
        processes are notified."""
        took = [take(queue, count) for take in self._takers]
        if any(took):
            return True
        self._sender.send(notifications.WORK, queue)
        return False

    def notify_elsewhere(self, queue: str) -> None:
        """Notify other processes of claimable rows of a queue."""
        self._sender.send(notifications.WORK, queue)

    def publish(self, channel: str, payload: str = "") -> None:
        """Notify this process and the others."""
        self._deliver(channel, payload)
        self._sender.send(channel, payload)

    def notify_dispatch(self, transport: str) -> None:
        """An interaction is to be sent. Other processes are notified unless a worker of this process sends it."""
        took = [take(transport) for take in self._senders]
        if not any(took):
            self._sender.send(notifications.DISPATCH, transport)

    def send_by(self, take: Callable[[str], bool]) -> Callable[[], None]:
        """Offer interactions to a worker of this process first; `take(transport)` returns whether the worker sends
        them."""
        self._senders.append(take)
        return lambda: self._senders.remove(take)

    def notify_revoked(self, instance_id: int, fence: int) -> None:
        """An executing instance was taken from its worker: a step with an older fence must stop."""
        self._deliver(notifications.REVOKED_HERE, f"{instance_id} {fence}")
        self._sender.send(notifications.REVOKED, f"{instance_id} {fence}")

    def _deliver(self, channel: str, payload: str) -> None:
        for hear in tuple(self._subscribers.get(channel, ())):
            hear(payload)


class _Sender(Service):
    """Sends at once when idle; when busy, sends all that arrived meanwhile, SPACING after the last batch, once each."""

    def __init__(self, database: Database) -> None:
        super().__init__("notifications")
        self._database = database
        self._pending: dict[tuple[str, str], None] = {}

    def send(self, channel: str, payload: str) -> None:
        self._pending[channel, payload] = None
        self.wake()

    async def tick(self) -> float | None:
        if self._pending or self._backoff.is_failing:  # after a failure also an empty batch, as a probe
            batch, self._pending = list(self._pending), {}
            await notifications.send(self._database, batch)  # lost in an outage: a hint, and polling is the floor
            await asyncio.sleep(SPACING)
        return 0.0 if self._pending else None

    async def finish(self) -> None:
        """Send the pending notifications, then stop."""
        await self.stop()
        if self._pending:
            try:
                await self.tick()
            except Outage:
                log.debug("notifications: dropped at shutdown, the database is unavailable")


class _Listener(Service):
    """Keeps one LISTEN connection and probes it with notifications to itself (a pooler may drop them silently)."""

    def __init__(self, database: Database, dsn: str | None, deliver: Callable[[str, str], None]) -> None:
        super().__init__("listener")
        self.heard = False
        self.tried = asyncio.Event()
        self._is_unreachable = False  # the last probe did not arrive, and the log says so
        self._database = database
        self._dsn = dsn
        self._deliver = deliver
        self._stack: AsyncExitStack | None = None
        self._connection: Queryable | None = None
        self._echo: asyncio.Future[None] | None = None
        self._probe_id = ""

    async def tick(self) -> float | None:
        try:
            if self._connection is None:
                await self._connect()
            heard = await self._probe()
        except BaseException:
            await self._disconnect()
            raise
        finally:
            self.tried.set()
        if not heard and not self._is_unreachable:
            log.warning("listener: notifications do not arrive (a pooler in transaction mode, or the server's queue of "
                        "them is full?); polling only")
        self.heard, self._is_unreachable = heard, not heard
        return PROBE_EVERY

    async def stop(self) -> None:
        await super().stop()
        await self._disconnect()

    async def _connect(self) -> None:
        self._stack = AsyncExitStack()
        self._connection = await self._stack.enter_async_context(
            self._database.listening(self._dsn, notifications.CHANNELS, self._hear, self._lost)
        )
        for channel in (notifications.WORK, notifications.DUE, notifications.SETTLED, notifications.DISPATCH):
            self._deliver(channel, "")  # notifications may have been missed: wake all subscribers

    async def _probe(self) -> bool:
        assert self._connection is not None  # noqa: S101 - tick connects before it probes
        self._probe_id = secrets.token_hex(8)
        self._echo = asyncio.get_running_loop().create_future()
        await notifications.send(self._connection, [(notifications.PROBE, self._probe_id)])
        try:
            await asyncio.wait_for(self._echo, PROBE_TIMEOUT)
        except TimeoutError:
            return False
        return True

    def _hear(self, channel: str, payload: str) -> None:
        if channel != notifications.PROBE:
            self._deliver(channel, payload)
        elif payload == self._probe_id and self._echo is not None and not self._echo.done():
            self._echo.set_result(None)

    def _lost(self) -> None:
        self.heard = False
        self._connection = None
        self.wake()

    async def _disconnect(self) -> None:
        self.heard = False
        self._connection = None
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()
