"""What a worker does about questions to the world: its dispatchers, receivers and reconciler, started and stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from stepwell._core.tokens import TokenKeys
from stepwell._runtime.dispatcher import Dispatcher, Opened, Receiver
from stepwell._runtime.lease import Lease
from stepwell._runtime.reconciler import Reconciler
from stepwell._runtime.tally import Tally
from stepwell._service import calm
from stepwell._store.database import Database
from stepwell._store.units import Settled
from stepwell.transports import Admit, Transport

log = logging.getLogger("stepwell")

CLOSE_PATIENCE = 5.0


class World(NamedTuple):
    """What an engine brings along for questions: ways out, keys for tokens, the door for answers, whom to tell."""

    transports: Sequence[Opened]
    token_keys: TokenKeys
    admit: Admit
    settled: Callable[[Settled], None]


class Asking:
    """One dispatcher and one receiver per transport: what stops one of them stops nothing else."""

    def __init__(
        self,
        world: World,
        *,
        database: Database,
        lease: Lease,
        tally: Tally,
        every: timedelta,
        expect_due: Callable[[float], None],
    ) -> None:
        self._lease = lease
        self._every = every.total_seconds()
        self._opened = world.transports
        dispatch = partial(
            Dispatcher, database=database, lease=lease, token_keys=world.token_keys, settled=world.settled,
            expect_due=expect_due,
        )  # fmt: skip
        self._dispatchers = {
            opened.transport.name: dispatch(opened) for opened in self._opened if opened.transport.sends
        }
        self._receivers = [
            Receiver(opened, lease, world.admit) for opened in self._opened
            if type(opened.transport).receive is not Transport.receive
        ]  # fmt: skip
        self._reconciler = Reconciler(
            database=database, lease=lease, tally=tally, every=every, sends=bool(self._dispatchers),
            settled=world.settled,
        )  # fmt: skip

    @property
    def wakes(self) -> Mapping[str, Callable[[], None]]:
        """How to tell the dispatchers that something is to be sent, by transport."""
        return {name: dispatcher.tell for name, dispatcher in self._dispatchers.items()}

    def start(self) -> None:
        for service in (*self._dispatchers.values(), *self._receivers):
            service.start()
        self._reconciler.start(after=calm(self._every))

    def take(self, transport: str) -> bool:
        """Something is to be sent, or, if it is not said over what, may be: True if this worker sends over it."""
        for name, dispatcher in self._dispatchers.items():
            if transport in ("", name):
                dispatcher.wake()
        return transport in self._dispatchers

    async def stop(self, patience: float) -> None:
        """Bring in and send no more; what is being sent has that much time."""
        await asyncio.gather(*(receiver.stop() for receiver in self._receivers))
        await self._reconciler.stop()
        await asyncio.gather(*(dispatcher.drain(patience) for dispatcher in self._dispatchers.values()))
        await asyncio.gather(*(_close(opened, self._lease) for opened in self._opened))


async def _close(opened: Opened, user: object) -> None:
    try:
        async with asyncio.timeout(CLOSE_PATIENCE):
            await opened.close(user)
    except Exception as error:  # noqa: BLE001 - a transport's own trouble ends nothing
        log.warning("transport %s: did not close: %r", opened.transport.name, error)
