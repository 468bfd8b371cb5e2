"""Which claims of a worker have a slot, which wait for one, and which starts or continues when a slot is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import Protocol

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import ActiveClaim, ActiveClaims, Read
from stepwell._worker.queue_slots import CLOSED, AllQueueSlots, QueueSlots, Returning
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
    - leaving: it was taken back, and its release is under way.

    Each change that may free a slot ends with `fill`: so no claim waits while a slot is free.
    """

    def __init__(
        self, all_queue_slots: AllQueueSlots, active_claims: ActiveClaims, starter: StartsSteps, wakeups: Wakeups
    ) -> None:
        self._all_queue_slots = all_queue_slots
        self._active_claims = active_claims
        self._starter = starter
        self._wakeups = wakeups
        self._lined_up: set[int] = set()  # instances
        self._suspects: deque[Claim] = deque()  # that wait until no other one runs
        self._suspect: Claim | None = None  # the one that runs
        self.leaving: set[int] = set()  # instances
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
        if starters:
            queue_slots.makes_no_progress = False
        if starters or (self._suspects and self._may_begin_suspect(queue_slots)):
            queue_slots.is_beginning = True
            self._lined_up.update(claim.id for claim in starters)  # at once: `waiting_ids` has them
            self._starter.begin(queue_slots, starters)

    def line_up(self, queue_slots: QueueSlots, starters: Sequence[Claim]) -> list[Claim]:
        """Which claims with slots start now: ordinary ones together, and one crash suspect after the other."""
        self._lined_up.difference_update(claim.id for claim in starters)
        suspects = [claim for claim in starters if claim.is_suspect]
        self._suspects.extend(suspects)
        claims = [claim for claim in starters if not claim.is_suspect] if suspects else [*starters]
        if self._may_begin_suspect(queue_slots):
            self._suspect = self._suspects.popleft()
            claims.append(self._suspect)
        return claims

    def _may_begin_suspect(self, queue_slots: QueueSlots) -> bool:
        return bool(self._suspects) and self._suspect is None and queue_slots.access is not CLOSED

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
        self._refill(queue_slots)

    def step_aside(self, active: ActiveClaim) -> None:
        """Leave the slot of a step that has returned, to continue when its outcome is committed."""
        self._all_queue_slots[active.claim.queue].away += 1
        active.leave_slot()
        active.free_slot = self._come_back

    def _end_away(self, claim: Claim) -> None:
        """Free the slot that was kept for an instance which does not continue here, for the next claim."""
        queue_slots = self._all_queue_slots[claim.queue]
        queue_slots.away -= 1
        self._refill(queue_slots)

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
        if not queue_slots.has_look:
            self._starter.look_after(queue_slots)

    def _take_slot(self, queue_slots: QueueSlots, active: ActiveClaim, stored: Read) -> None:
        queue_slots.running += 1
        active.free_slot = self.free_slot
        self._wakeups.step_ready(active, stored)

    def _refill(self, queue_slots: QueueSlots) -> None:
        self.fill(queue_slots)
        if queue_slots.ready:
            self._wakeups.work_available()

    def take_back_all(self) -> list[Claim]:
        """Take back, for release, what was claimed and has not started."""
        return [claim for queue_slots in self._all_queue_slots for claim in self.take_back(queue_slots)]

    def take_back(self, queue_slots: QueueSlots) -> list[Claim]:
        """Take back, for release, what was claimed from one queue and has not started."""
        suspects = [claim for claim in self._suspects if claim.queue == queue_slots.queue]
        self._leave_line(suspects)
        return [
            *self._take_back(suspects), *self.take_back_returning(queue_slots), *self.take_back_waiting(queue_slots)
        ]  # fmt: skip

    def take_back_returning(self, queue_slots: QueueSlots, patience: float = 0.0) -> list[Claim]:
        """Take back, for release, what has waited longer than `patience` to continue: another worker may have a slot,
        or another instance may be more urgent."""
        claims, until = [], perf_counter() - patience
        while queue_slots.returning and queue_slots.returning[0].since <= until:
            active, _, _ = queue_slots.returning.popleft()
            if not active.abandoned:
                active.part()
                claims.append(active.claim)
        return self._take_back(claims)

    def take_back_waiting(self, queue_slots: QueueSlots, keep: int = 0) -> list[Claim]:
        """Take back, for release, what waits for a slot of one queue, except the first `keep` claims."""
        return self._take_back([queue_slots.buffer.pop() for _ in range(len(queue_slots.buffer) - keep)])

    def released(self, claims: Sequence[Claim]) -> None:
        """The release of these claims has ended."""
        self.leaving.difference_update(claim.id for claim in claims)

    def _take_back(self, claims: Sequence[Claim]) -> list[Claim]:
        held = [claim for claim in claims if self._holds(claim)]
        for claim in held:
            self._active_claims.drop(claim)
            self.leaving.add(claim.id)
        return held

    def _leave_line(self, suspects: Collection[Claim]) -> None:
        """Suspects that will not start leave their slots."""
        if suspects:
            self._suspects = deque(claim for claim in self._suspects if claim not in suspects)
        for claim in suspects:
            self._all_queue_slots[claim.queue].running -= 1

    def drop_lost(self) -> None:
        """Claims were lost, and are no longer active: those that wait leave their buffers, and waiting suspects their
        slots, at once."""
        lost = [claim for claim in self._suspects if not self._holds(claim)]
        self._leave_line(lost)
        for queue_slots in self._all_queue_slots:
            left = deque(claim for claim in queue_slots.buffer if self._holds(claim))
            returning = deque(entry for entry in queue_slots.returning if not entry.active.abandoned)
            if len(left) < len(queue_slots.buffer) or len(returning) < len(queue_slots.returning) or lost:
                queue_slots.buffer, queue_slots.returning = left, returning
                self._refill(queue_slots)

    def _holds(self, claim: Claim) -> bool:
        active = self._active_claims.get(claim.id)
        return active is not None and active.claim is claim

    def note_paused(self, paused: Collection[str]) -> tuple[list[QueueSlots], list[Claim]]:
        """Note which queues are paused, all others being not. Returns the queues for which that is new, and the claims
        to release: those of paused queues that have not started."""
        changed = self._all_queue_slots.note_paused(paused)
        for queue_slots in changed:
            self.fill(queue_slots)
        return changed, [claim for queue_slots in self._all_queue_slots if queue_slots.is_paused
                         for claim in self.take_back(queue_slots)]

    @property
    def has_unstarted(self) -> bool:
        """Whether claims outside the buffers are about to start, or are released."""
        return bool(self._lined_up or self.leaving or self._suspects)

    def waiting_ids(self) -> list[int]:
        """Instances that are claimed and have not started."""
        buffered = [claim.id for queue_slots in self._all_queue_slots for claim in queue_slots.buffer]
        return [*self._lined_up, *self.leaving, *(claim.id for claim in self._suspects), *buffered]
