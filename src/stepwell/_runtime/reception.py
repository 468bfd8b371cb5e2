"""Signals of this process: who is woken by one goes on in the hands of a worker of the same process that has a slot."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

from msgspec.structs import replace

from stepwell import _probes
from stepwell._core.faults import Contention
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._runtime.flusher import AT_ONCE
from stepwell._runtime.intake import Intake
from stepwell._runtime.lanes import Lanes
from stepwell._runtime.reservations import Reservations
from stepwell._store import signals
from stepwell._store.database import Database, Queryable
from stepwell._store.signals import Delivery, NewSignal, Plain

MOST_SIGNALS = 1_000  # slots are kept while they are delivered
MOST_TEXT = 1_000_000  # characters of their payloads
FEW = AT_ONCE  # which a claim begins in one statement: a delivery that claims is no quicker, and costs more
IN_VAIN = 20  # deliveries that go the plain way after one that nobody has gone on by

Tell = Callable[[Sequence[Delivery]], None]


class Reception:
    """What is woken here need not be told of, found and claimed: the delivery itself claims it.

    Slots are kept for all targets or for none, or some would pass others that are more urgent; and only where the last
    signals of this process have woken somebody, since nobody knows the queue of an id.
    Whoever signals may be cancelled meanwhile. The delivery goes on then, or some would be in hands that know nothing
    of them.
    """

    def __init__(self, *, lanes: Lanes, intake: Intake, reservations: Reservations, labels: Sequence[str]) -> None:
        self._lanes = lanes
        self._intake = intake
        self._reservations = reservations
        self._labels = labels
        self._queue: str | None = None  # where signals wake somebody
        self._rest = 0  # deliveries that are to go the plain way
        self._deliveries: set[asyncio.Task[list[Delivery] | None]] = set()

    def note(self, queues: Iterable[str]) -> None:
        """Signals have woken somebody in these queues, the first one being that of most."""
        self._queue = next((queue for queue in queues if self._lanes.find(queue) is not None), self._queue)

    async def deliver(
        self, db: Database, given: Sequence[NewSignal], plain: Plain, tell: Tell
    ) -> list[Delivery] | None:
        """Deliver over a connection of who signals, and tell what became of it. None if nothing was delivered: there
        are not slots for all, or somebody holds a target. No slot is kept for who waits, be it for a connection."""
        self._rest = max(0, self._rest - 1)
        if self._queue is None or self._rest:
            return None
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(db.connection())
            reserved = self._reservations.make(self._queue, len(given), whole=True)
            if reserved is None:
                return None
            delivering = self._deliver(stack.pop_all(), connection, given, plain, reserved, tell)
            delivery = asyncio.create_task(delivering, name="stepwell delivery")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        return await asyncio.shield(delivery)

    async def settle(self, patience: float) -> None:
        """Wait for deliveries under way, not longer than that."""
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=patience)

    async def _deliver(
        self, stack: AsyncExitStack, connection: Queryable, given: Sequence[NewSignal], plain: Plain,
        reserved: Reservation, tell: Tell,
    ) -> list[Delivery] | None:  # fmt: skip
        claims: list[Claim] = []
        ids = [s.id or 0 for s in given]
        async with stack:
            try:
                with self._intake.expecting(ids):
                    if _probes.hooks:
                        await _probes.reach("reception.before_delivery", ids=ids)
                    answer = await signals.deliver_in_hand(connection, given, plain, reserved, self._labels)
                claims = self._without_stale(reserved.queue, answer.claims)
            except Contention:
                return None
            finally:
                self._reservations.settle(reserved, claims)
        if not claims:
            self._rest = IN_VAIN
        tell(answer.deliveries)
        return answer.deliveries

    def _without_stale(self, queue: str, claims: list[Claim]) -> list[Claim]:
        """Claims that begin now, with the signal that has woken each; those that are to wait for others' beginning read
        their inboxes when they begin, for more may have come by then."""
        if not self._lanes[queue].is_beginning:
            return claims
        return [replace(claim, waker=None) for claim in claims]


class Receptions:
    """Those of the workers of this process."""

    def __init__(self) -> None:
        self._receptions: list[Reception] = []

    def add(self, reception: Reception) -> Callable[[], None]:
        """Let signals of this process be delivered there; returns how to end that."""
        self._receptions.append(reception)
        return lambda: self._receptions.remove(reception)

    def note(self, delivered: Sequence[Delivery]) -> None:
        """Signals that nobody went on by here have become of this."""
        if self._receptions:
            woken = Counter(d.queue for d in delivered if d.queue is not None)
            queues = [queue for queue, _ in woken.most_common()]
            for reception in self._receptions:
                reception.note(queues)

    async def deliver(self, db: Database, given: Sequence[NewSignal], tell: Tell) -> list[Delivery] | None:
        """Deliver into the hands of who has slots, and tell what became of it. None if nobody has, or the signals need
        more than their targets: then nothing was delivered."""
        plain = Plain.of(given) if self._receptions and FEW < len(given) <= MOST_SIGNALS else None
        if plain is None or len(plain.payloads) > MOST_TEXT:
            return None
        for reception in list(self._receptions):
            delivered = await reception.deliver(db, given, plain, tell)
            if delivered is not None:
                return delivered
        return None
