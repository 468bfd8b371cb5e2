"""Decides which claims of a worker have a slot, and which starts or continues when a slot is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import Protocol

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import ActiveClaim, ActiveClaims, Read
from stepwell._worker.queue_slots import CLOSED, AllQueueSlots, Look, QueueSlots, Returning
from stepwell._worker.wakeups import Wakeups


class StartsSteps(Protocol):
    """Does what `ReadyQueue` decides."""

    def begin(self, queue_slots: QueueSlots, claims: list[Claim]) -> None:
        """Start these claims, which have slots now; `ReadyQueue.end_beginning` is called when that has ended."""

    def look_after(self, queue_slots: QueueSlots) -> None:
        """Let the claimer look at what waits for a slot of this queue, repeatedly, while there is any."""


class ReadyQueue:
    """The slots of all queues of one worker. It decides without a database and an event loop; `Starter` acts.

    A claim is in one of these states, until its step has ended or it is released:

    - waiting: in the buffer of its queue, without a slot;
    - starting: it has a slot, and is about to be marked started;
    - waiting suspect: it has a slot, and starts when no other crash suspect of this worker runs;
    - running: it has a slot, and its step runs;
    - away: its step has returned, and its slot is kept (see `QueueSlots`) until its commit is confirmed;
    - returning: its commit is confirmed, and its next step waits for a slot;
    - leaving: it was taken back by `Withdrawals`, and its release is under way.

    Each change that may free a slot ends with `fill`: so no claim waits while a slot is free.
    """

    def __init__(
        self, all_queue_slots: AllQueueSlots, active_claims: ActiveClaims, starter: StartsSteps, wakeups: Wakeups
    ) -> None:
        self._all_queue_slots = all_queue_slots
        self._active_claims = active_claims
        self._starter = starter
        self._wakeups = wakeups
        self.starting: set[int] = set()  # instances
        self.suspects: deque[Claim] = deque()  # that wait until no other one runs
        self._suspect: Claim | None = None  # the one that runs
        self.free_slot = self.end  # bound once
        self._come_back = self._end_away

    def put(self, queue_slots: QueueSlots, claims: Sequence[Claim]) -> None:
        """Let claims wait for slots, and start as far as there are any."""
        queue_slots.buffer.extend(claims)
        self.fill(queue_slots)

    def fill(self, queue_slots: QueueSlots) -> None:
        """Let claims that wait for a slot continue or start, as far as there are any. Those that continue are first.
        One batch of a queue is marked started at a time."""
        while queue_slots.returning and queue_slots.running < queue_slots.slots:
            active, stored, _ = queue_slots.returning.popleft()
            if not active.abandoned:
                self._take_slot(queue_slots, active, stored)
        if queue_slots.is_beginning:
            return
        starters = []
        while queue_slots.buffer and queue_slots.has_slot:
            queue_slots.running += 1
            starters.append(queue_slots.buffer.popleft())
        if starters and queue_slots.look is Look.STALLED:
            queue_slots.look = Look.PROGRESS
        if starters or (self.suspects and self._may_begin_suspect(queue_slots)):
            queue_slots.is_beginning = True
            self.starting.update(claim.id for claim in starters)  # at once: `waiting_ids` has them
            self._starter.begin(queue_slots, starters)

    def choose(self, queue_slots: QueueSlots, starters: Sequence[Claim]) -> list[Claim]:
        """Which claims with slots start now: ordinary ones together, and one crash suspect after the other."""
        self.starting.difference_update(claim.id for claim in starters)
        suspects = [claim for claim in starters if claim.is_suspect]
        self.suspects.extend(suspects)
        claims = [claim for claim in starters if not claim.is_suspect] if suspects else [*starters]
        if self._may_begin_suspect(queue_slots):
            self._suspect = self.suspects.popleft()
            claims.append(self._suspect)
        return claims

    def _may_begin_suspect(self, queue_slots: QueueSlots) -> bool:
        return bool(self.suspects) and self._suspect is None and queue_slots.access is not CLOSED

    def start(self, claim: Claim) -> ActiveClaim | None:
        """The active claim of a claim that is marked started, with its slot; None if it was lost meanwhile."""
        active = self._active_claims.get(claim.id)
        if active is None or active.claim is not claim:
            self.let_go(claim)
            return None
        active.free_slot = self.free_slot
        return active

    def end_beginning(self, queue_slots: QueueSlots) -> None:
        """The claims that were given slots have started, or were dropped: start the next ones."""
        queue_slots.is_beginning = False
        self.fill(queue_slots)
        self._wakeups.work_available()  # for a demand that was too small meanwhile

    def let_go(self, claim: Claim) -> None:
        """A claim with a slot does not start: the row is another worker's by now, or the heartbeat releases it."""
        self._active_claims.drop(claim)
        self.end(claim)

    def end(self, claim: Claim) -> None:
        """Free the slot of a step that has ended, for the next claim."""
        queue_slots = self._all_queue_slots[claim.queue]
        queue_slots.running -= 1
        if claim is self._suspect:
            self._suspect = None
        self.refill(queue_slots)

    def step_aside(self, active: ActiveClaim) -> None:
        """Leave the slot of a step that has returned, to continue when its outcome is committed."""
        self._all_queue_slots[active.claim.queue].away += 1
        active.leave_slot()
        active.free_slot = self._come_back

    def _end_away(self, claim: Claim) -> None:
        """Free the slot that was kept for an instance which does not continue here, for the next claim."""
        queue_slots = self._all_queue_slots[claim.queue]
        queue_slots.away -= 1
        self.refill(queue_slots)

    def go_on(self, active: ActiveClaim, stored: Read) -> None:
        """Let an instance continue that has stepped aside; if no slot is free, it has the next one, for a moment."""
        queue_slots = self._all_queue_slots[active.claim.queue]
        queue_slots.away -= 1  # not by `free_slot`, which would give this slot to another claim
        active.free_slot = None
        if queue_slots.running < queue_slots.slots:
            self._take_slot(queue_slots, active, stored)
            return
        active.is_pending = True
        queue_slots.returning.append(Returning(active, stored, perf_counter()))
        if queue_slots.look is Look.NONE:
            self._starter.look_after(queue_slots)

    def _take_slot(self, queue_slots: QueueSlots, active: ActiveClaim, stored: Read) -> None:
        queue_slots.running += 1
        active.free_slot = self.free_slot
        self._wakeups.step_ready(active, stored)

    def refill(self, queue_slots: QueueSlots) -> None:
        """A slot of this queue is free: use it here, or let the claimer claim for it."""
        self.fill(queue_slots)
        if queue_slots.backlog.ready:
            self._wakeups.work_available()

    def leave(self, suspects: Collection[Claim]) -> None:
        """Suspects that will not start leave their slots."""
        if suspects:
            self.suspects = deque(claim for claim in self.suspects if claim not in suspects)
        for claim in suspects:
            self._all_queue_slots[claim.queue].running -= 1
