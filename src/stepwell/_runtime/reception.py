"""Signals of this process: who is woken by one goes on in the hands of a worker of the same process that has a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stepwell import _probes
from stepwell._core.faults import Contention
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._runtime.flusher import AT_ONCE
from stepwell._runtime.reservations import Reservations
from stepwell._store import signals
from stepwell._store.database import Database
from stepwell._store.signals import Delivery, NewSignal, Plain

MOST_SIGNALS = 1_000  # slots are kept while they are delivered
MOST_TEXT = 1_000_000  # characters of their payloads
FEW = AT_ONCE  # which a claim begins in one statement: a delivery that claims is no quicker, and costs more


class Reception:
    """What is woken here need not be told of, found and claimed: the delivery itself claims it.

    Whoever signals may be cancelled meanwhile. The delivery goes on then, or some would be in hands that know nothing
    of them.
    """

    def __init__(self, reservations: Reservations, queues: Sequence[str], labels: Sequence[str]) -> None:
        self._reservations = reservations
        self._queues = queues
        self._labels = labels
        self._deliveries: set[asyncio.Task[list[Delivery] | None]] = set()

    async def deliver(self, db: Database, given: Sequence[NewSignal], plain: Plain) -> list[Delivery] | None:
        """Deliver over the connections of who signals. None if nothing was delivered: there are no slots, or somebody
        holds a target, and slots are not kept for who waits."""
        reserved = self._reservations.make(dict.fromkeys(self._queues, len(given)))
        if reserved is None:
            return None
        delivery = asyncio.create_task(self._deliver(db, given, plain, reserved), name="stepwell delivery")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        return await asyncio.shield(delivery)

    async def settle(self, patience: float) -> None:
        """Wait for deliveries under way, not longer than that."""
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=patience)

    async def _deliver(
        self, db: Database, given: Sequence[NewSignal], plain: Plain, reserved: Reservation
    ) -> list[Delivery] | None:
        claims: list[Claim] = []
        try:
            if _probes.hooks:
                await _probes.reach("reception.before_delivery", ids=[s.id for s in given])
            answer = await signals.deliver_in_hand(db, given, plain, reserved, self._labels)
            claims = answer.claims
        except Contention:
            return None
        finally:
            self._reservations.settle(reserved, claims)
        return answer.deliveries


class Receptions:
    """Those of the workers of this process."""

    def __init__(self) -> None:
        self._receptions: list[Reception] = []

    def add(self, reception: Reception) -> Callable[[], None]:
        """Let signals of this process be delivered there; returns how to end that."""
        self._receptions.append(reception)
        return lambda: self._receptions.remove(reception)

    async def deliver(self, db: Database, given: Sequence[NewSignal]) -> list[Delivery] | None:
        """Deliver into the hands of who has slots. None if nobody has, or the signals need more than their targets:
        then nothing was delivered."""
        plain = Plain.of(given) if self._receptions and FEW < len(given) <= MOST_SIGNALS else None
        if plain is None or len(plain.payloads) > MOST_TEXT:
            return None
        for reception in list(self._receptions):
            delivered = await reception.deliver(db, given, plain)
            if delivered is not None:
                return delivered
        return None
