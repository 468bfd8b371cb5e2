"""The queues of one worker: how many slots each has, what fills them, whether more may be waiting or it is paused."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from time import perf_counter
from typing import NamedTuple

from stepwell._core.records import Claim
from stepwell._runtime.hands import Hand
from stepwell._runtime.runs import Read

MOST_TURNS = 100
MOST_AWAY = 4  # for each slot: instances whose step is being committed, and that leave theirs to others
BETWEEN_YIELDS = 0.05  # seconds; what goes back is news itself: where steps are short, each would yield to the last


class Returning(NamedTuple):
    """An instance that may go on, and has no slot."""

    hand: Hand
    stored: Read
    since: float


class Turns:
    """Whose turn it is in a fair queue: for each priority, the share after which it goes on.

    It begins somewhere, so that workers that start often, or together, do not all begin with the same tenant.
    """

    __slots__ = ("after", "start")

    def __init__(self) -> None:
        self.after: dict[int, int] = {}
        self.start = random.randrange(-(2**63), 2**63)  # noqa: S311 - a place to begin, not a secret

    def note(self, turned: Mapping[int, int]) -> None:
        """Go on after these; priorities that were not claimed from for long are forgotten."""
        for priority, share in turned.items():
            self.after.pop(priority, None)
            self.after[priority] = share
        while len(self.after) > MOST_TURNS:
            del self.after[next(iter(self.after))]


class Lane:
    """One queue: its slots, the claims that wait for one, and whether a claim may find something."""

    __slots__ = (
        "away", "buffer", "has_look", "has_news", "is_bare", "is_beginning", "is_closed", "is_limited", "is_paused",
        "is_stalled", "is_swift", "left_behind", "queue", "ready", "reserved", "returning", "running", "slots", "turns",
        "unasked", "yielded_at",
    )  # fmt: skip

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.running = 0
        self.reserved = 0  # slots that are kept for children which are being inserted
        self.unasked = 0  # such slots since the last claim
        self.buffer: deque[Claim] = deque()
        self.away = 0  # instances that run ahead, and whose last step is being committed
        self.returning: deque[Returning] = deque()  # they were away, and others have their slots
        self.has_look = False  # somebody will look after those
        self.ready = True
        self.has_news = False  # somebody has told of work since the last claim, and nobody knows how urgent it is
        self.yielded_at = float("-inf")  # when somebody last made room for such news
        self.turns: Turns | None = None  # None: it is no fair queue
        self.is_paused = False  # as far as we know; the claim itself knows better
        self.is_closed = False  # the worker ends: nothing begins, and nothing runs ahead
        self.is_bare = True  # what waits needs nothing but a worker, as far as we know
        self.is_limited = False  # the last claim found rows that need limits
        self.is_beginning = False  # claims are on their way to their steps
        self.is_swift = False  # its last steps were over as soon as they began
        self.is_stalled = False  # since the last look, nothing in the buffer has begun
        self.left_behind: int | None = None  # what the last claim left is at most as urgent as this priority

    def lets_run_ahead(self, priority: int) -> bool:
        """Whether an instance may go on without a claim; who asks does as it is told.

        Not past a pause or the end, nor past what goes before this priority (lower first), be it in the buffer or what
        the last claim may have left. Of work that was told of since, only a claim knows how urgent it is: where no
        slot is free for one, somebody goes back now and then.
        """
        if self.is_paused or self.is_closed:
            return False
        if self.left_behind is not None and self.left_behind < priority:
            return False
        if self.buffer and self.buffer[0].priority < priority:
            return False
        return not (self.has_news and self._yields_to_news())

    def _yields_to_news(self) -> bool:
        """Whether one is to make room for news: once for all that came since the last claim."""
        now = perf_counter()
        if self.free > 0 or now - self.yielded_at < BETWEEN_YIELDS:
            return False
        self.has_news, self.yielded_at = False, now
        return True

    @property
    def has_slot(self) -> bool:
        """Whether something more may begin."""
        return self.running + self._kept < self.slots and not self.is_closed

    @property
    def free(self) -> int:
        """Slots that nobody has, and nobody waits for."""
        return self.slots - self.running - self._kept - self.reserved - len(self.buffer) - len(self.returning)

    @property
    def _kept(self) -> int:
        """Slots of those who are away, that are kept for them. Where steps are over as soon as they begin, they find
        others when they come back; but not too many, so that no worker has much more than it can run."""
        return max(self.away - MOST_AWAY * self.slots, 0) if self.is_swift else self.away

    def reserve(self, number: int, *, whole: bool = False) -> int:
        """Keep slots for up to so many that come without a claim, or with `whole` for all or none; returns how many.

        None where something waits that a claim would bring first, or where a claim would be refused. No more than there
        are slots, and where steps are over as soon as they begin, as many more as are claimed ahead of them. Where
        something may wait, no more than that until a claim has looked: or it could wait for ever.
        """
        is_shut = self.is_paused or self.is_closed or self.is_limited or self.turns is not None
        if is_shut or self.left_behind is not None or self.returning:
            return 0
        ahead = self.slots if self.is_swift and not whole else 0
        room = self.free + ahead
        if self.ready:
            room = min(room, self.slots + ahead - self.unasked)
        kept = 0 if whole and room < number else max(0, min(number, room))
        self.reserved += kept
        self.unasked += kept
        return kept

    def unreserve(self, number: int, born: int) -> None:
        """Give slots back that were kept: those who were born have theirs, and the others were never there."""
        self.reserved -= number
        self.unasked = max(0, self.unasked - (number - born))

    def demand(self, prefetch: int, min_demand: int) -> int:
        """How many to claim: free slots and the prefetch on top, or nothing while that is too few to ask for. Where
        limits are waited for, nothing on top: what they admit is to begin now."""
        if self.is_limited:
            prefetch = 0
        room = self.free + prefetch
        if self.is_beginning:
            return self._demand_ahead(room, self.slots + prefetch)
        least = min(min_demand, self.slots + prefetch)
        return room if room >= least or not self.running else 0

    def _demand_ahead(self, room: int, most: int) -> int:
        """How many to claim while others begin: what there will be room for, or nothing while that is little.

        Where steps are over as soon as they begin, all slots will be free then. Who waited for that would claim while
        nothing runs, and run while nothing is claimed.
        """
        if self.is_swift and self.is_bare and self.turns is None:
            room += self.slots
        return min(room, most) if room * 2 >= self.slots else 0


class Lanes:
    """All lanes of a worker."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self._lanes = {queue: Lane(queue, slots) for queue, slots in queues.items()}
        self.claims_at_once = False  # a claim is under way with which all begins that the worker has

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def find(self, queue: str) -> Lane | None:
        """The lane of this queue, if it is one of ours."""
        return self._lanes.get(queue)

    def __getitem__(self, queue: str) -> Lane:
        return self._lanes[queue]

    @property
    def names(self) -> list[str]:
        return list(self._lanes)

    @property
    def slots(self) -> int:
        return sum(lane.slots for lane in self)

    def close(self) -> None:
        """From now on nothing begins: what a claim on its way still brings is given back, and nothing runs ahead."""
        for lane in self:
            lane.is_closed = True

    def mark_ready(self, queue: str, *, is_news: bool = True) -> bool:
        """Note that a claim may find something in this queue; False if it is not one of ours.

        It is news if somebody told of it, and not if it was seen in passing.
        """
        lane = self._lanes.get(queue)
        if lane is None:
            return False
        lane.ready = True
        lane.has_news |= is_news
        return True

    def note_paused(self, paused: Collection[str]) -> list[Lane]:
        """Note which queues are paused, all others being not; returns the lanes for which that is new."""
        changed = [lane for lane in self if lane.is_paused != (lane.queue in paused)]
        for lane in changed:
            lane.is_paused = not lane.is_paused
        return changed

    def note_fair(self, fair: Collection[str]) -> None:
        """Note which queues are fair, all others being not. One that stays fair goes on where it was."""
        for lane in self:
            if lane.queue not in fair:
                lane.turns = None
            elif lane.turns is None:
                lane.turns = Turns()

    def free(self, queue: str) -> int:
        """Free slots for this queue; 0 if it is not one of ours."""
        lane = self._lanes.get(queue)
        return 0 if lane is None else max(0, lane.free)
