"""The queues of one worker: the slots of each, the claims that wait for them, and whether to claim more."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from time import perf_counter
from typing import NamedTuple

import msgspec

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import ActiveClaim, Read

MOST_TURNS = 100
PATIENCE = 0.05  # seconds that an instance waits for a slot to continue, before it is released
MOST_AWAY = 4  # per slot: instances that wait for a commit while other claims use their slots
BETWEEN_YIELDS = 0.05  # seconds; released rows are news too: short steps would yield to each other all the time


class Returning(NamedTuple):
    """An instance that may continue but has no slot."""

    active: ActiveClaim
    stored: Read
    since: float


class Turns:
    """Turns in a fair queue: for each priority, the share after which the next claim continues.

    The first turn is random, so that workers that start often, or together, do not all begin with the same tenant.
    """

    __slots__ = ("after", "start")

    def __init__(self) -> None:
        self.after: dict[int, int] = {}
        self.start = random.randrange(-(2**63), 2**63)  # noqa: S311 - a first turn, not a secret

    def note(self, turned: Mapping[int, int]) -> None:
        """Continue after these shares; forget the priorities with the oldest claims."""
        for priority, share in turned.items():
            self.after.pop(priority, None)
            self.after[priority] = share
        while len(self.after) > MOST_TURNS:
            del self.after[next(iter(self.after))]


class Access(Enum):
    """Whether claims of a queue may start here.

    - OPEN: they start as soon as they have slots.
    - PAUSED: as far as this worker knows, an operator has paused the queue: it releases claims that have not started.
      The claim statement itself reads the row of the queue.
    - CLOSED: the worker stops. No claim starts, no step runs ahead, and the queue does not open again.
    """

    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"


OPEN, PAUSED, CLOSED = Access  # reading a member from the class is five times slower


class Look(Enum):
    """Whether the starter rechecks claims that wait for a slot.

    - NONE: no claim waits, so no check is scheduled.
    - PROGRESS: a check is scheduled, and claims have started since the last one.
    - STALLED: a check is scheduled, and no claim has started: the steps are not short, even if the first ones were.
    """

    NONE = "none"
    PROGRESS = "progress"
    STALLED = "stalled"


class Backlog(msgspec.Struct, kw_only=True):
    """What a worker knows about the unclaimed rows of a queue."""

    ready: bool = True  # a claim may find rows
    has_news: bool = False  # a notification arrived since the last claim; the priority of its rows is unknown
    yielded_at: float = float("-inf")  # when an instance last left its slot for such news
    left_behind: int | None = None  # the most urgent priority of rows that the last claim may have left
    turns: Turns | None = None  # None: the queue is not fair
    fast_claim_ok: bool = True  # as far as known, the rows require only a worker
    is_limited: bool = False  # the last claim found rows with limit requirements
    reserved_since_claim: int = 0  # slots that were reserved for children since the last claim


class QueueSlots:
    """One queue: its slots, the claims that wait for one, and whether to claim more."""

    __slots__ = (
        "access", "away", "backlog", "buffer", "is_beginning", "look", "queue", "reserved", "returning", "running",
        "slots", "steps_are_short",
    )  # fmt: skip

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.running = 0
        self.reserved = 0  # slots kept for children that are being inserted
        self.buffer: deque[Claim] = deque()
        self.away = 0  # instances that will run ahead once their last step is committed
        self.returning: deque[Returning] = deque()  # were away, and other claims have taken their slots
        self.look = Look.NONE  # whether waiting claims are rechecked
        self.access = OPEN
        self.backlog = Backlog()
        self.is_beginning = False  # a batch of claims is being started
        self.steps_are_short = False  # its last steps ended as soon as they started

    def lets_run_ahead(self, priority: int) -> bool:
        """Whether an instance may run ahead. The caller must obey: a False may use up the pending notification.

        No instance runs ahead of a pause, a stop, or rows with a more urgent (lower) priority in the buffer or left by
        the last claim. The priority of rows notified since then is unknown: if no slot is free for them, an instance is
        released from time to time.
        """
        if self.access is not OPEN:
            return False
        if self.backlog.left_behind is not None and self.backlog.left_behind < priority:
            return False
        if self.buffer and self.buffer[0].priority < priority:
            return False
        return not (self.backlog.has_news and self._yields_to_news())

    def _yields_to_news(self) -> bool:
        """Whether an instance must yield its slot to news: once for all notifications since the last claim."""
        now = perf_counter()
        if self.free > 0 or now - self.backlog.yielded_at < BETWEEN_YIELDS:
            return False
        self.backlog.has_news, self.backlog.yielded_at = False, now
        return True

    @property
    def is_paused(self) -> bool:
        return self.access is PAUSED

    @property
    def is_closed(self) -> bool:
        return self.access is CLOSED

    @property
    def has_slot(self) -> bool:
        """Whether one more claim may start."""
        return self.access is OPEN and self.running + self._kept < self.slots

    def most_waiting(self, prefetch: int) -> int:
        """How many claims may wait in the buffer: none while the queue is paused. Claims made ahead of short steps wait
        until the steps prove not to be short."""
        if self.access is PAUSED:
            return 0
        return len(self.buffer) if self.is_beginning or self.steps_are_short else prefetch

    @property
    def free(self) -> int:
        """Slots without a claim that has them or waits for them."""
        return self.slots - self.running - self._kept - self.reserved - len(self.buffer) - len(self.returning)

    @property
    def _kept(self) -> int:
        """Slots kept for instances that are away. With short steps, up to MOST_AWAY instances per slot need none: other
        slots will be free when they return. Beyond that, a worker would hold more than it can run."""
        return max(self.away - MOST_AWAY * self.slots, 0) if self.steps_are_short else self.away

    def reserve(self, number: int) -> int:
        """Reserve slots for up to this number of children that are inserted claimed; returns how many.

        No slots if other rows must be claimed first, or in a paused, closed, fair or limited queue. At most the free
        slots; with short steps, the slots of the queue in addition. If rows may wait, the sum until the next claim is
        bounded: otherwise the children could keep these rows waiting forever.
        """
        is_shut = self.access is not OPEN or self.backlog.is_limited or self.backlog.turns is not None
        if is_shut or self.backlog.left_behind is not None or self.returning:
            return 0
        ahead = self.slots if self.steps_are_short else 0
        room = self.free + ahead
        if self.backlog.ready:
            room = min(room, self.slots + ahead - self.backlog.reserved_since_claim)
        kept = max(0, min(number, room))
        self.reserved += kept
        self.backlog.reserved_since_claim += kept
        return kept

    def unreserve(self, number: int, inserted_claimed: int) -> None:
        """Free reserved slots; children that were inserted claimed count as active claims instead."""
        self.reserved -= number
        self.backlog.reserved_since_claim = max(0, self.backlog.reserved_since_claim - (number - inserted_claimed))

    def demand(self, prefetch: int, min_demand: int) -> int:
        """How many rows to claim: free slots plus prefetch, or none while that is too few for a statement. No prefetch
        if rows need limits: an admitted row must start now."""
        if self.backlog.is_limited:
            prefetch = 0
        room = self.free + prefetch
        if self.is_beginning:
            return self._demand_ahead(room, self.slots + prefetch)
        least = min(min_demand, self.slots + prefetch)
        return room if room >= least or not self.running else 0

    def _demand_ahead(self, room: int, most: int) -> int:
        """How many rows to claim while other claims are marked started: the slots that will be free, or none if few.

        With short steps, all slots will be free by then. If the claimer waited for that, claiming and running would
        alternate instead of overlapping.
        """
        if self.steps_are_short and self.backlog.fast_claim_ok and self.backlog.turns is None:
            room += self.slots
        return min(room, most) if room * 2 >= self.slots else 0


class AllQueueSlots:
    """The queue slots of all queues of a worker."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self._all_queue_slots = {queue: QueueSlots(queue, slots) for queue, slots in queues.items()}
        self.claims_started = False  # a claim statement that also marks rows started is running

    def __iter__(self) -> Iterator[QueueSlots]:
        return iter(self._all_queue_slots.values())

    def find(self, queue: str) -> QueueSlots | None:
        """The slots of this queue, if it is one of this worker's."""
        return self._all_queue_slots.get(queue)

    def __getitem__(self, queue: str) -> QueueSlots:
        return self._all_queue_slots[queue]

    @property
    def names(self) -> list[str]:
        return list(self._all_queue_slots)

    @property
    def slots(self) -> int:
        return sum(queue_slots.slots for queue_slots in self)

    def close(self) -> None:
        """Start no more claims: those that still arrive are released, and no step runs ahead."""
        for queue_slots in self:
            queue_slots.access = CLOSED

    def mark_ready(self, queue: str, *, is_news: bool = True) -> bool:
        """Note that a claim may find rows in this queue; False if it is not one of this worker's.

        `is_news` if a notification arrived, not if the timers found the rows.
        """
        queue_slots = self._all_queue_slots.get(queue)
        if queue_slots is None:
            return False
        queue_slots.backlog.ready = True
        queue_slots.backlog.has_news |= is_news
        return True

    def note_paused(self, paused: Collection[str]) -> list[QueueSlots]:
        """Note that exactly these queues are paused; returns the queues that changed."""
        changed = []
        for queue_slots in self:
            access = PAUSED if queue_slots.queue in paused else OPEN
            if queue_slots.access not in (access, CLOSED):
                queue_slots.access = access
                changed.append(queue_slots)
        return changed

    def note_fair(self, fair: Collection[str]) -> None:
        """Note that exactly these queues are fair. A queue that stays fair keeps its turns."""
        for queue_slots in self:
            if queue_slots.queue not in fair:
                queue_slots.backlog.turns = None
            elif queue_slots.backlog.turns is None:
                queue_slots.backlog.turns = Turns()

    def free(self, queue: str) -> int:
        """Free slots of this queue; 0 if it is not one of this worker's."""
        queue_slots = self._all_queue_slots.get(queue)
        return 0 if queue_slots is None else max(0, queue_slots.free)
