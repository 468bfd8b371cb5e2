"""The queues of one worker: how many slots each has, what waits for them, and whether a claim may find more."""

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
PATIENCE = 0.05  # seconds that an instance which could continue waits for a slot
MOST_AWAY = 4  # for each slot: instances that wait for a commit while other claims use their slots
BETWEEN_YIELDS = 0.05  # seconds; a row that is released is news too: with short steps, each would yield to the last


class Returning(NamedTuple):
    """An instance that may continue, and has no slot."""

    active: ActiveClaim
    stored: Read
    since: float


class Turns:
    """Turns in a fair queue: for each priority, the share after which the next claim looks.

    The first turn is random, so that workers which start often, or together, do not all start with the same tenant.
    """

    __slots__ = ("after", "start")

    def __init__(self) -> None:
        self.after: dict[int, int] = {}
        self.start = random.randrange(-(2**63), 2**63)  # noqa: S311 - a first turn, not a secret

    def note(self, turned: Mapping[int, int]) -> None:
        """Continue after these; priorities that were not claimed from for long are forgotten."""
        for priority, share in turned.items():
            self.after.pop(priority, None)
            self.after[priority] = share
        while len(self.after) > MOST_TURNS:
            del self.after[next(iter(self.after))]


class Access(Enum):
    """Whether claims of a queue may start here.

    - OPEN: they start as soon as they have slots.
    - PAUSED: as far as this worker knows, an operator has paused the queue: what has not started is released. The claim
      statement itself looks at the row of the queue.
    - CLOSED: the worker stops. Nothing starts, nothing runs ahead, and the queue does not open again.
    """

    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"


OPEN, PAUSED, CLOSED = Access  # a member is five times slower to read from the class


class Look(Enum):
    """Whether the starter looks again at claims that find no slot.

    - NONE: nothing waits that it would have to look at.
    - PROGRESS: it looks soon, and claims have started since the last look.
    - STALLED: it looks soon, and none has started. Then the steps are not short, even if the first ones were.
    """

    NONE = "none"
    PROGRESS = "progress"
    STALLED = "stalled"


class Backlog(msgspec.Struct, kw_only=True):
    """What a worker knows of the rows of a queue that it has not claimed."""

    ready: bool = True  # a claim may find some
    has_news: bool = False  # a notification of work came since the last claim; its priority is not known
    yielded_at: float = float("-inf")  # when an instance last left its slot for such news
    left_behind: int | None = None  # the most urgent priority that the last claim may have left
    turns: Turns | None = None  # None: it is not a fair queue
    fast_claim_ok: bool = True  # as far as known, what waits requires nothing but a worker
    is_limited: bool = False  # the last claim found rows with limit requirements
    unasked: int = 0  # slots that were reserved for children since the last claim


class QueueSlots:
    """One queue: its slots, the claims that wait for one, and whether a claim may find something."""

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
        self.away = 0  # instances that run ahead, while their last step is committed
        self.returning: deque[Returning] = deque()  # they were away, and other claims have their slots
        self.look = Look.NONE  # at what waits for a slot
        self.access = OPEN
        self.backlog = Backlog()
        self.is_beginning = False  # claims are on their way to their steps
        self.steps_are_short = False  # its last steps ended as soon as they started

    def lets_run_ahead(self, priority: int) -> bool:
        """Whether an instance may continue without a claim. The caller has to do what it says.

        Not past a pause or the end, nor past work of a more urgent priority (lower first), in the buffer or left by
        the last claim. Only a claim knows the priority of work that was notified since: if no slot is free for it, an
        instance is released now and then.
        """
        if self.access is not OPEN:
            return False
        if self.backlog.left_behind is not None and self.backlog.left_behind < priority:
            return False
        if self.buffer and self.buffer[0].priority < priority:
            return False
        return not (self.backlog.has_news and self._yields_to_news())

    def _yields_to_news(self) -> bool:
        """Whether an instance is to make room for news: once for all notifications since the last claim."""
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
        """How many claims may wait in the buffer: none while the queue is paused. What was claimed ahead of short steps
        waits until the steps turn out not to be short."""
        if self.access is PAUSED:
            return 0
        return len(self.buffer) if self.is_beginning or self.steps_are_short else prefetch

    @property
    def free(self) -> int:
        """Slots that no claim has or waits for."""
        return self.slots - self.running - self._kept - self.reserved - len(self.buffer) - len(self.returning)

    @property
    def _kept(self) -> int:
        """Slots kept for instances that are away. With short steps none are kept, since others are free when they come
        back; but only for so many, so that no worker has much more than it can run."""
        return max(self.away - MOST_AWAY * self.slots, 0) if self.steps_are_short else self.away

    def reserve(self, number: int) -> int:
        """Keep slots for up to this number of children that are inserted claimed; returns how many.

        None if rows wait that a claim would return first, or if a claim would be refused. No more than there are slots;
        with short steps, twice that. If rows may wait, no more than that until a claim has looked: or they could wait
        forever.
        """
        is_shut = self.access is not OPEN or self.backlog.is_limited or self.backlog.turns is not None
        if is_shut or self.backlog.left_behind is not None or self.returning:
            return 0
        ahead = self.slots if self.steps_are_short else 0
        room = self.free + ahead
        if self.backlog.ready:
            room = min(room, self.slots + ahead - self.backlog.unasked)
        kept = max(0, min(number, room))
        self.reserved += kept
        self.backlog.unasked += kept
        return kept

    def unreserve(self, number: int, inserted_claimed: int) -> None:
        """Free slots that were kept: children that were inserted claimed take theirs as active claims."""
        self.reserved -= number
        self.backlog.unasked = max(0, self.backlog.unasked - (number - inserted_claimed))

    def demand(self, prefetch: int, min_demand: int) -> int:
        """How many to claim: free slots and the prefetch, or nothing while that is too few for a statement. If rows
        wait for limits, no prefetch: what a limit admits is to start now."""
        if self.backlog.is_limited:
            prefetch = 0
        room = self.free + prefetch
        if self.is_beginning:
            return self._demand_ahead(room, self.slots + prefetch)
        least = min(min_demand, self.slots + prefetch)
        return room if room >= least or not self.running else 0

    def _demand_ahead(self, room: int, most: int) -> int:
        """How many to claim while other claims are marked started: what there will be room for, or nothing if it is
        little.

        With short steps, all slots will be free by then. A claimer that waited for that would claim while nothing runs,
        and the worker would run while nothing is claimed.
        """
        if self.steps_are_short and self.backlog.fast_claim_ok and self.backlog.turns is None:
            room += self.slots
        return min(room, most) if room * 2 >= self.slots else 0


class AllQueueSlots:
    """The queue slots of all queues of a worker."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self._all_queue_slots = {queue: QueueSlots(queue, slots) for queue, slots in queues.items()}
        self.claims_started = False  # a claim is under way that also marks its rows started

    def __iter__(self) -> Iterator[QueueSlots]:
        return iter(self._all_queue_slots.values())

    def find(self, queue: str) -> QueueSlots | None:
        """The slots of this queue, if this worker has it."""
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
        """From now on no claim starts: what a claim on its way still brings is released, and nothing runs ahead."""
        for queue_slots in self:
            queue_slots.access = CLOSED

    def mark_ready(self, queue: str, *, is_news: bool = True) -> bool:
        """Note that a claim may find rows in this queue; False if this worker does not have it.

        It is news if a notification said so, and not if the timers have seen it.
        """
        queue_slots = self._all_queue_slots.get(queue)
        if queue_slots is None:
            return False
        queue_slots.backlog.ready = True
        queue_slots.backlog.has_news |= is_news
        return True

    def note_paused(self, paused: Collection[str]) -> list[QueueSlots]:
        """Note which queues are paused, all others being not; returns the queues for which that is new."""
        changed = []
        for queue_slots in self:
            access = PAUSED if queue_slots.queue in paused else OPEN
            if queue_slots.access not in (access, CLOSED):
                queue_slots.access = access
                changed.append(queue_slots)
        return changed

    def note_fair(self, fair: Collection[str]) -> None:
        """Note which queues are fair, all others being not. One that stays fair keeps its turns."""
        for queue_slots in self:
            if queue_slots.queue not in fair:
                queue_slots.backlog.turns = None
            elif queue_slots.backlog.turns is None:
                queue_slots.backlog.turns = Turns()

    def free(self, queue: str) -> int:
        """Free slots of this queue; 0 if this worker does not have it."""
        queue_slots = self._all_queue_slots.get(queue)
        return 0 if queue_slots is None else max(0, queue_slots.free)
