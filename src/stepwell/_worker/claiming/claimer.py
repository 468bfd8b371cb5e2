"""Claims rows when a queue may have some: as many as fit, with one statement per queue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from stepwell._core.instance import Claim
from stepwell._core.store_errors import Conflict, Contention, Overdue
from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._store.connection.pool import Database
from stepwell._store.operations.claim import MOST_STARTED, Claimed, ClaimPaths, ClaimRequest, claim
from stepwell._store.registrations.workers import StartedClaims
from stepwell._worker.claiming.holds import Holds
from stepwell._worker.claiming.limits import Limiter
from stepwell._worker.claiming.pauses import Pauses
from stepwell._worker.claiming.release import ClaimReleaser
from stepwell._worker.commit_queue import MOST_UNCOMMITTED, CommitQueue
from stepwell._worker.queue_slots import CLOSED, PATIENCE, PAUSED, AllQueueSlots, QueueSlots
from stepwell.config import Settings

log = logging.getLogger("stepwell")

LARGEST_CLAIM = 1_000
TRIES = 3
CONTENDED_PAUSE = 0.01


class StepStarter(Protocol):
    """The starter, as the claimer sees it."""

    @property
    def fault(self) -> Exception | None: ...
    @property
    def is_failing(self) -> bool: ...

    def may_start_all(self, queue_slots: QueueSlots, number: int) -> bool: ...
    def take(self, queue_slots: QueueSlots, claims: Sequence[Claim], begun: StartedClaims | None = None) -> None: ...
    def raise_fault(self) -> None: ...
    async def await_next_start(self) -> None: ...


class FillsSlots(Protocol):
    """The ready queue, as the claimer sees it."""

    def fill(self, queue_slots: QueueSlots) -> None: ...


class Claimer(Service):
    """Fills the queue slots. Notifications, freed slots and the timers wake it; without them it ticks only while a
    queue is contended, or commits are behind."""

    def __init__(
        self, *, database: Database, lease: Lease, all_queue_slots: AllQueueSlots, starter: StepStarter,
        ready_queue: FillsSlots, commit_queues: Sequence[CommitQueue], limiter: Limiter, holds: Holds,
        releaser: ClaimReleaser, settings: Settings,
    ) -> None:  # fmt: skip
        super().__init__("claimer")
        self._database = database
        self._lease = lease
        self._all_queue_slots = all_queue_slots
        self._starter = starter
        self._ready_queue = ready_queue
        self._commit_queues = commit_queues
        self._limiter = limiter
        self._holds = holds
        self._releaser = releaser
        self._settings = settings
        self._claim_paths = ClaimPaths()
        self._locked = Pauses()  # queues in which a claim waited for a lock, or took too long

    def hear_work(self, queue: str) -> None:
        """A notification of claimable rows arrived."""
        if self._all_queue_slots.mark_ready(queue):
            self.wake()

    def hear_offer(self, queue: str, count: int) -> bool:
        """This process announces claimable rows; True if this worker has slots for all of them."""
        queue_slots = self._all_queue_slots.find(queue)
        if queue_slots is None:
            return False
        queue_slots.backlog.ready = queue_slots.backlog.has_news = True
        self.wake()
        return queue_slots.free >= count

    def take_children(self, queue_slots: QueueSlots, claims: Sequence[Claim]) -> None:
        """Start children that were inserted already claimed; a stopping worker releases them."""
        if queue_slots.access is CLOSED:
            self._releaser.release_soon(list(claims))
        else:
            self._starter.take(queue_slots, claims)

    async def tick(self) -> float | None:
        if self._starter.fault is not None:
            self._starter.raise_fault()
        contended = False
        for queue_slots in self._all_queue_slots:
            self._ready_queue.fill(queue_slots)  # in case an earlier change has missed a free slot
            if queue_slots.returning or queue_slots.buffer:
                keep = queue_slots.most_waiting(self._settings.prefetch)
                if queue_slots.returning or len(queue_slots.buffer) > keep:
                    await self._releaser.release_waiting(queue_slots, keep, PATIENCE)
            if queue_slots.backlog.ready and queue_slots.access is not PAUSED and not self._stopping:
                contended |= await self._claim_in_time(queue_slots)
        if contended:
            return CONTENDED_PAUSE
        return self._locked.next_in() if self._locked.until else None

    async def _claim_in_time(self, queue_slots: QueueSlots) -> bool:
        """Claim from one queue, unless it waited for a lock or took too long lately: other queues do not wait."""
        if self._lease.current is None or (self._locked.until and self._locked.has(queue_slots.queue)):
            return False
        try:
            contended = await self._claim_queue(queue_slots, self._lease.current)
        except (Contention, Overdue) as error:
            log.debug("claimer: queue %r: %s", queue_slots.queue, error)
            if isinstance(error, Overdue):
                self._database.outages.failed_once(f"claimer of queue {queue_slots.queue}", error)
            queue_slots.backlog.ready = True
            self._locked.add(queue_slots.queue)
            return False
        if self._locked.until:
            self._locked.drop(queue_slots.queue)
        return contended

    async def _claim_queue(self, queue_slots: QueueSlots, worker_id: int) -> bool:
        """Claim from one queue; True if some of its rows may be claimable soon."""
        backlog = queue_slots.backlog
        room = queue_slots.demand(self._settings.prefetch, self._settings.min_demand)
        demand = min(room, LARGEST_CLAIM, MOST_UNCOMMITTED - sum([queue.waiting for queue in self._commit_queues]))
        if demand <= 0:
            return room > 0  # too many outcomes wait for their commit
        may_start = backlog.turns is None and self._starter.may_start_all(queue_slots, min(demand, MOST_STARTED))
        backlog.ready = backlog.has_news = False  # before the claim: notifications during the claim set them again
        backlog.reserved_since_claim = 0
        try:
            claimed = await self._claim(queue_slots, worker_id, demand, may_start=may_start)
        except BaseException:
            backlog.ready = True
            raise
        if claimed is None:
            backlog.ready = True
            return True
        if probes.hooks:
            await probes.reach("claimer.claimed", ids=[claim.id for claim in claimed.claims])
            if claimed.begun is not None:
                await probes.reach("executor.begun", ids=list(claimed.begun.states))
        is_locked_out = self._plan_next(queue_slots, claimed)
        if not claimed.is_simple:
            await self._limiter.note(queue_slots.queue, claimed)
        self._take(queue_slots, claimed.claims, claimed.begun)
        if self._starter.is_failing:
            await self._starter.await_next_start()
        if claimed.is_simple:
            return is_locked_out
        contended = await self._admit(queue_slots, claimed)
        if (claimed.busy or claimed.foreign) and await self._holds.put(queue_slots.queue, claimed):
            contended = backlog.ready = True
        return contended or is_locked_out

    def _plan_next(self, queue_slots: QueueSlots, claimed: Claimed) -> bool:
        """Note what the window tells about the next claim; True if other workers have locked all of its rows."""
        backlog, window = queue_slots.backlog, claimed.window
        is_full = window >= claimed.limit
        if window:
            backlog.fast_claim_ok = claimed.is_simple
            backlog.is_limited = not claimed.is_simple and claimed.needs_limits
        backlog.left_behind = claimed.last_priority if is_full else None
        is_locked_out = backlog.turns is not None and claimed.missed and not window
        if is_full or claimed.missed:
            backlog.ready = True
            if not is_locked_out:
                self.wake()
        return is_locked_out

    def _take(self, queue_slots: QueueSlots, claims: list[Claim], begun: StartedClaims | None = None) -> None:
        """Pass claims to the starter if their lease still holds; otherwise the reaper returns them."""
        if claims and claims[0].worker_id == self._lease.current:
            self._starter.take(queue_slots, claims, begun)

    async def _admit(self, queue_slots: QueueSlots, claimed: Claimed) -> bool:
        """Let the limits admit rows that need them, at most one per free slot: an admitted row must start now.

        True if some of the rows may be claimable soon.
        """
        free = max(0, queue_slots.free)
        ids = [row.id for row in claimed.limited[:free]]
        if left := claimed.limited[free:]:
            queue_slots.backlog.ready, queue_slots.backlog.left_behind = True, left[0].priority
        if not ids:
            return False
        try:
            claims, contended = await self._limiter.admit(queue_slots.queue, ids)
        except BaseException:
            queue_slots.backlog.ready = True
            raise
        queue_slots.backlog.ready |= contended
        self._take(queue_slots, claims)
        return contended

    async def _claim(
        self, queue_slots: QueueSlots, worker_id: int, demand: int, *, may_start: bool
    ) -> Claimed | None:
        """Claim; no slots are reserved for children meanwhile if the claim may mark rows started. None if other workers
        claimed the same concurrency keys in each try."""
        if probes.hooks:
            await probes.reach("claimer.before_claim", queue=queue_slots.queue)
        turns = queue_slots.backlog.turns
        request = ClaimRequest(
            worker_id=worker_id, queue=queue_slots.queue, limit=demand, labels=self._holds.labels,
            passed_over=self._holds.others, may_start=may_start, turns=None if turns is None else turns.after,
            first_share=0 if turns is None else turns.start,
        )  # fmt: skip
        for _ in range(TRIES):
            self._all_queue_slots.claims_started = may_start
            try:
                claimed = await claim(self._database, request, self._claim_paths)
            except Conflict:
                continue
            finally:
                self._all_queue_slots.claims_started = False
            if turns is not None and claimed.turned is not None:
                turns.note(claimed.turned)
            return claimed
        return None
