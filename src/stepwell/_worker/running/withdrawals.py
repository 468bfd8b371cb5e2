"""Takes back claims that have not started: at a pause, at a stop, or because another worker may have a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from time import perf_counter

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import ActiveClaims
from stepwell._worker.queue_slots import AllQueueSlots, QueueSlots
from stepwell._worker.running.ready_queue import ReadyQueue


class Withdrawals:
    """Claims taken back are no longer active; the caller releases their rows, and then calls `released`."""

    def __init__(self, ready_queue: ReadyQueue, all_queue_slots: AllQueueSlots, active_claims: ActiveClaims) -> None:
        self._ready_queue = ready_queue
        self._all_queue_slots = all_queue_slots
        self._active_claims = active_claims
        self.leaving: set[int] = set()  # instances that are being released

    def take_back_all(self) -> list[Claim]:
        """Take back all claims that have not started."""
        return [claim for queue_slots in self._all_queue_slots for claim in self.take_back(queue_slots)]

    def take_back(self, queue_slots: QueueSlots) -> list[Claim]:
        """Take back the claims of one queue that have not started."""
        suspects = [claim for claim in self._ready_queue.suspects if claim.queue == queue_slots.queue]
        self._ready_queue.leave(suspects)
        return [
            *self._take_back(suspects), *self.take_back_returning(queue_slots), *self.take_back_waiting(queue_slots)
        ]  # fmt: skip

    def take_back_returning(self, queue_slots: QueueSlots, patience: float = 0.0) -> list[Claim]:
        """Take back claims that have waited longer than `patience` to continue: another worker may have a slot, or
        another instance may be more urgent."""
        claims, until = [], perf_counter() - patience
        while queue_slots.returning and queue_slots.returning[0].since <= until:
            active, _, _ = queue_slots.returning.popleft()
            if not active.abandoned:
                active.end_pending()
                claims.append(active.claim)
        return self._take_back(claims)

    def take_back_waiting(self, queue_slots: QueueSlots, keep: int = 0) -> list[Claim]:
        """Take back the claims that wait for a slot of one queue, except the first `keep`."""
        return self._take_back([queue_slots.buffer.pop() for _ in range(len(queue_slots.buffer) - keep)])

    def _take_back(self, claims: Sequence[Claim]) -> list[Claim]:
        held = [claim for claim in claims if self._holds(claim)]
        for claim in held:
            self._active_claims.drop(claim)
            self.leaving.add(claim.id)
        return held

    def released(self, claims: Sequence[Claim]) -> None:
        """Note that the release of these claims has ended."""
        self.leaving.difference_update(claim.id for claim in claims)

    def drop_lost(self) -> None:
        """Remove claims that are no longer active from the buffers, and free the slots of such suspects."""
        lost = [claim for claim in self._ready_queue.suspects if not self._holds(claim)]
        self._ready_queue.leave(lost)
        for queue_slots in self._all_queue_slots:
            left = deque(claim for claim in queue_slots.buffer if self._holds(claim))
            returning = deque(entry for entry in queue_slots.returning if not entry.active.abandoned)
            if len(left) < len(queue_slots.buffer) or len(returning) < len(queue_slots.returning) or lost:
                queue_slots.buffer, queue_slots.returning = left, returning
                self._ready_queue.refill(queue_slots)

    def _holds(self, claim: Claim) -> bool:
        active = self._active_claims.get(claim.id)
        return active is not None and active.claim is claim

    def note_paused(self, paused: Collection[str]) -> tuple[list[QueueSlots], list[Claim]]:
        """Note that exactly these queues are paused. Returns the queues that changed, and the claims of paused queues
        that have not started, to be released."""
        changed = self._all_queue_slots.note_paused(paused)
        for queue_slots in changed:
            self._ready_queue.fill(queue_slots)
        return changed, [claim for queue_slots in self._all_queue_slots if queue_slots.is_paused
                         for claim in self.take_back(queue_slots)]

    def waiting_ids(self) -> list[int]:
        """Instances with claims that have not started."""
        buffered = [claim.id for queue_slots in self._all_queue_slots for claim in queue_slots.buffer]
        suspects = [claim.id for claim in self._ready_queue.suspects]
        return [*self._ready_queue.starting, *self.leaving, *suspects, *buffered]
