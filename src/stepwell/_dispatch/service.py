"""Starts and stops a worker's services for interactions: dispatchers, receivers and the reconciler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from stepwell._core.resume_token import TokenKeys
from stepwell._dispatch.dispatcher import Dispatcher
from stepwell._dispatch.opened import Opened
from stepwell._dispatch.receiver import Receiver
from stepwell._dispatch.reconciler import Reconciler
from stepwell._lease.lease import Lease
from stepwell._process.service import Service, calm
from stepwell._process.stats import Stats
from stepwell._store.await_units import Settled
from stepwell._store.connection.pool import Database
from stepwell.transports import Admit, Transport

log = logging.getLogger("stepwell")

CLOSE_TIMEOUT = 5.0


class DispatchSetup(NamedTuple):
    """What an engine passes to its workers: transports, token keys, and callbacks to admit and settle completions."""

    transports: Sequence[Opened]
    token_keys: TokenKeys
    admit: Admit
    settled: Callable[[Settled], None]

    @property
    def sending(self) -> list[str]:
        """The transports that send."""
        return [opened.transport.name for opened in self.transports if opened.transport.sends]


class DispatchService:
    """One dispatcher and one receiver per transport; a failure of one stops no other."""

    def __init__(
        self,
        dispatch_setup: DispatchSetup,
        *,
        database: Database,
        lease: Lease,
        stats: Stats,
        every: timedelta,
        expect_due: Callable[[float], None],
    ) -> None:
        self._lease = lease
        self._every = every.total_seconds()
        self._opened = dispatch_setup.transports
        dispatch = partial(
            Dispatcher, database=database, lease=lease, token_keys=dispatch_setup.token_keys,
            settled=dispatch_setup.settled, expect_due=expect_due,
        )  # fmt: skip
        self._dispatchers = {
            opened.transport.name: dispatch(opened) for opened in self._opened if opened.transport.sends
        }
        self._receivers = [
            Receiver(opened, lease, dispatch_setup.admit) for opened in self._opened
            if type(opened.transport).receive is not Transport.receive
        ]  # fmt: skip
        self._reconciler = Reconciler(
            database=database, lease=lease, stats=stats, every=every, sends=bool(self._dispatchers),
            settled=dispatch_setup.settled,
        )  # fmt: skip

    def wake_for_due(self, transport: str) -> None:
        """The timers found interactions that wait to be sent over this transport."""
        self._dispatchers[transport].wake_for_due()

    @property
    def services(self) -> Sequence[Service]:
        return (*self._dispatchers.values(), *self._receivers, self._reconciler)

    def clean_up(self) -> None:
        """Look at once for ended units with many open interactions."""
        self._reconciler.clean_up()

    def start(self) -> None:
        for service in (*self._dispatchers.values(), *self._receivers):
            service.start()
        self._reconciler.start(after=calm(self._every))

    def take(self, transport: str) -> bool:
        """Wake the dispatcher of this transport, or, with "", all of them; True if this worker sends over it."""
        for name, dispatcher in self._dispatchers.items():
            if transport in ("", name):
                dispatcher.wake()
        return transport in self._dispatchers

    async def stop(self, timeout: float) -> None:
        """Stop receiving and sending; running sends have `timeout` seconds to end."""
        await asyncio.gather(*(receiver.stop() for receiver in self._receivers))
        await self._reconciler.stop()
        await asyncio.gather(*(dispatcher.drain(timeout) for dispatcher in self._dispatchers.values()))
        await asyncio.gather(*(_close(opened, self._lease) for opened in self._opened))


async def _close(opened: Opened, user: object) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await opened.close(user)
    except Exception as error:  # noqa: BLE001 - a transport that fails to close must not stop the others
        log.warning("transport %s: did not close: %r", opened.transport.name, error)
