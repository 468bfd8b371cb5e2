"""Decides which claims of a worker have a slot, and which one starts or continues when a slot becomes free."""

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
    """Carries out the decisions of `ReadyQueue`."""

    def begin(self, queue_slots: QueueSlots, claims: list[Claim]) -> None:
        """Start these claims, which have slots; then call `ReadyQueue.end_beginning`."""

    def recheck(self, queue_slots: QueueSlots) -> None:
        """Wake the claimer repeatedly while claims wait for a slot of this queue."""


class ReadyQueue:
    """The slots of all queues of one worker. It uses neither database nor event loop; `Starter` acts.

    Until its step has ended or it is released, a claim is in one of these states:

    - waiting: in the buffer of its queue, without a slot;
    - starting: it has a slot, and is about to be marked started;
    - waiting suspect: it has a slot, and starts when this worker runs no other crash suspect;
    - running: it has a slot, and its step runs;
    - away: its step has returned, and its slot is kept (see `QueueSlots`) until its commit is confirmed;
    - returning: its commit is confirmed, and its next step waits for a slot;
    - leaving: `Withdrawals` took it back, and its release is under way.

    Each change that may free a slot ends with `fill`, so that no claim waits while a slot is free.
    """

    def __init__(
        self, all_queue_slots: AllQueueSlots, active_claims: ActiveClaims, starter: StartsSteps, wakeups: Wakeups
    ) -> None:
        self._all_queue_slots = all_queue_slots
        self._active_claims = active_claims
        self._starter = starter
        self._wakeups = wakeups
        self.starting: set[int] = set()  # instances
        self.suspects: deque[Claim] = deque()  # each waits until no other one runs
        self._suspect: Claim | None = None  # the running one
        self.free_slot = self.end  # bound once
        self._free_kept_slot = self._end_away

    def put(self, queue_slots: QueueSlots, claims: Sequence[Claim]) -> None:
        """Add claims to the buffer, and start as many as there are free slots."""
        queue_slots.buffer.extend(claims)
        self.fill(queue_slots)

    def fill(self, queue_slots: QueueSlots) -> None:
        """Give free slots to waiting claims: first to those that continue, then to those that start.

        Only one batch per queue is marked started at a time.
        """
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
            self.starting.update(claim.id for claim in starters)  # before any await: `waiting_ids` must include them
            self._starter.begin(queue_slots, starters)

    def choose(self, queue_slots: QueueSlots, starters: Sequence[Claim]) -> list[Claim]:
        """Choose which claims with slots start now: all ordinary ones, but only one crash suspect at a time."""
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
        """Give the slot of a claim that is marked started to its active claim; None if the claim was lost meanwhile."""
        active = self._active_claims.get(claim.id)
        if active is None or active.claim is not claim:
            self.drop_unstarted(claim)
            return None
        active.free_slot = self.free_slot
        return active

    def end_beginning(self, queue_slots: QueueSlots) -> None:
        """The claims of a batch have started or were dropped: start the next ones."""
        queue_slots.is_beginning = False
        self.fill(queue_slots)
        self._wakeups.work_available()  # the demand may have been too small meanwhile

    def drop_unstarted(self, claim: Claim) -> None:
        """Drop a claim with a slot that cannot start: another worker has its row, or the heartbeat releases it."""
        self._active_claims.drop(claim)
        self.end(claim)

    def end(self, claim: Claim) -> None:
        """Free the slot of an ended step for the next claim."""
        queue_slots = self._all_queue_slots[claim.queue]
        queue_slots.running -= 1
        if claim is self._suspect:
            self._suspect = None
        self.refill(queue_slots)

    def step_aside(self, active: ActiveClaim) -> None:
        """Free the slot of a returned step; its next step needs one once the outcome is committed (state: away)."""
        self._all_queue_slots[active.claim.queue].away += 1
        active.leave_slot()
        active.free_slot = self._free_kept_slot

    def _end_away(self, claim: Claim) -> None:
        """Free the slot kept for an instance that does not continue in this worker."""
        queue_slots = self._all_queue_slots[claim.queue]
        queue_slots.away -= 1
        self.refill(queue_slots)

    def run_next(self, active: ActiveClaim, stored: Read) -> None:
        """Run the next step of an instance that was away; if no slot is free, it waits briefly for the next one."""
        queue_slots = self._all_queue_slots[active.claim.queue]
        queue_slots.away -= 1  # `free_slot` would give this slot to another claim
        active.free_slot = None
        if queue_slots.running < queue_slots.slots:
            self._take_slot(queue_slots, active, stored)
            return
        active.is_pending = True
        queue_slots.returning.append(Returning(active, stored, perf_counter()))
        if queue_slots.look is Look.NONE:
            self._starter.recheck(queue_slots)

    def _take_slot(self, queue_slots: QueueSlots, active: ActiveClaim, stored: Read) -> None:
        queue_slots.running += 1
        active.free_slot = self.free_slot
        self._wakeups.step_ready(active, stored)

    def refill(self, queue_slots: QueueSlots) -> None:
        """A slot of this queue is free: use it for a waiting claim, or wake the claimer."""
        self.fill(queue_slots)
        if queue_slots.backlog.ready:
            self._wakeups.work_available()

    def leave(self, suspects: Collection[Claim]) -> None:
        """Free the slots of waiting suspects that will not start."""
        if suspects:
            self.suspects = deque(claim for claim in self.suspects if claim not in suspects)
        for claim in suspects:
            self._all_queue_slots[claim.queue].running -= 1
