"""Accepts claims, marks those with a slot started in the database, and then lets their steps run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime

from stepwell._core.instance import Claim
from stepwell._core.store_errors import Outage
from stepwell._process import probes
from stepwell._process.stats import Stats
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import StartedClaims
from stepwell._worker.active_claims import ActiveClaims, Read
from stepwell._worker.commit_queue import AT_ONCE
from stepwell._worker.queue_slots import CLOSED, PATIENCE, AllQueueSlots, Look, QueueSlots
from stepwell._worker.running.inputs import Inputs, load
from stepwell._worker.running.ready_queue import ReadyQueue
from stepwell._worker.running.withdrawals import Withdrawals
from stepwell._worker.wakeups import Wakeups

log = logging.getLogger("stepwell")


class Starter:
    """Handles claims from the reply of the claim statement to the start of their steps, as `ReadyQueue` decides.

    One task per queue marks claims started, so that the claimer can claim more rows meanwhile.
    """

    def __init__(
        self,
        *,
        database: Database,
        active_claims: ActiveClaims,
        all_queue_slots: AllQueueSlots,
        stats: Stats,
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self.ready_queue = ReadyQueue(all_queue_slots, active_claims, self, wakeups)
        self.withdrawals = Withdrawals(self.ready_queue, all_queue_slots, active_claims)
        self._active_claims = active_claims
        self._all_queue_slots = all_queue_slots
        self._stats = stats
        self._wakeups = wakeups
        self._beginnings: set[asyncio.Task[None]] = set()
        self._start_lock = asyncio.Lock()  # only one batch is marked started and launched at a time
        self._latest_claim: datetime | None = None
        self.fault: Exception | None = None  # the claimer raises it in its next tick
        self.is_failing = False  # no batch has started since the last error

    def may_start_all(self, queue_slots: QueueSlots, number: int) -> bool:
        """Whether this number of claims would all start at once: each has a slot, no step runs in the queue, no claim
        waits or starts in any queue, and the last claim left no rows behind."""
        is_busy = queue_slots.running or queue_slots.away or queue_slots.returning
        if is_busy or queue_slots.backlog.left_behind is not None:
            return False
        if self._beginnings or any(each.reserved or each.buffer for each in self._all_queue_slots):
            return False
        ready_queue = self.ready_queue
        return number <= queue_slots.free and not (
            ready_queue.starting or ready_queue.suspects or self.withdrawals.leaving
        )

    def take(self, queue_slots: QueueSlots, claims: Sequence[Claim], begun: StartedClaims | None = None) -> None:
        """Accept the claims of one statement: start those with a slot, and buffer the others. Claims that the statement
        has marked started run, unless the worker stops and closes the slots."""
        taken = deque(self._active_claims.add(claims))
        self._stats.claimed += len(taken)
        if len(taken) < len(claims):
            arrived = {claim.id for claim in taken}
            for claim in claims:
                if claim.id not in arrived:
                    log.warning("starter: %s: its claim arrived after the heartbeat had released it", claim.label)
        if self.withdrawals.leaving:
            self.withdrawals.released(claims)  # released rows may be claimed again
        latest = claims[-1].claimed_at
        self._latest_claim = max(latest, self._latest_claim or latest)
        if begun is not None and len(taken) <= queue_slots.free and queue_slots.access is not CLOSED:
            queue_slots.running += len(taken)
            inputs = Inputs(begun.inboxes, begun.units) if begun.inboxes or begun.units else None
            self._launch(taken, begun, inputs, claims[-1].worker_id)
            self.is_failing = False
        else:
            self.ready_queue.put(queue_slots, taken)
            if queue_slots.buffer and queue_slots.look is Look.NONE:
                self.recheck(queue_slots)

    def recheck(self, queue_slots: QueueSlots) -> None:
        """Wake the claimer every 50 ms while claims wait for a slot, to continue or to start. If none of them has
        started since the last check, the steps are not short, even if the first ones were."""
        if queue_slots.look is not Look.NONE:
            if queue_slots.buffer and queue_slots.look is Look.STALLED and not queue_slots.is_beginning:
                queue_slots.steps_are_short = False
            self._wakeups.work_available()
        queue_slots.look = Look.STALLED if queue_slots.returning or queue_slots.buffer else Look.NONE
        if queue_slots.look is not Look.NONE:
            asyncio.get_running_loop().call_later(PATIENCE, self.recheck, queue_slots)

    def raise_fault(self) -> None:
        """Raise the error of the last start that failed, so that the claimer backs off."""
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    async def await_next_start(self) -> None:
        """After an error, wait until the next claims have started, or raise their error, so that the backoff grows."""
        if self.is_failing:
            await self.all_started()
            self.raise_fault()

    async def all_started(self, patience: float | None = None) -> None:
        """Wait until all claims with a slot have started, at most `patience` seconds."""
        if self._beginnings:
            await asyncio.wait(self._beginnings, timeout=patience)

    def begin(self, queue_slots: QueueSlots, claims: list[Claim]) -> None:
        """Start these claims, which have slots now."""
        beginning = asyncio.create_task(self._begin_safely(queue_slots, claims), name="stepwell begin")
        self._beginnings.add(beginning)
        beginning.add_done_callback(self._beginnings.discard)

    async def _begin_safely(self, queue_slots: QueueSlots, starters: list[Claim]) -> None:
        try:
            async with self._start_lock:
                await self._begin(queue_slots, starters)
        except Exception as error:  # noqa: BLE001 - it is raised again in the claimer, which backs off
            log.debug("starter: could not start %d claims: %s; the heartbeat releases them", len(starters), error)
            if isinstance(error, Outage):
                self._database.outages.failed_once("starts of steps", error)
            self.fault, self.is_failing = error, True
        self.ready_queue.end_beginning(queue_slots)

    async def _begin(self, queue_slots: QueueSlots, starters: list[Claim]) -> None:
        """Start ordinary claims together, and crash suspects one at a time."""
        claims = self.ready_queue.choose(queue_slots, starters)
        left = deque(claims)
        try:
            if claims and (noted := await self._note(claims)) is not None:
                await self._launch_all(left, *noted)
                queue_slots.steps_are_short = self._have_ended(claims[: len(claims) // 2])
                self.is_failing = False
        finally:
            for claim in left:  # the heartbeat releases them within a beat
                self.ready_queue.drop_unstarted(claim)

    async def _note(self, claims: list[Claim]) -> tuple[StartedClaims, Inputs | None] | None:
        """Mark claims started, and load their inputs; None if the lease has ended."""
        assert self._latest_claim is not None  # noqa: S101 - `take` has set it
        begin = workers.mark_started(self._database, self._latest_claim, self.withdrawals.waiting_ids(), claims)
        loaded: Inputs | None = None
        if any(claim.has_inbox or claim.round or claim.unit_id for claim in claims):
            begun, loaded = await asyncio.gather(begin, load(self._database, claims))
        else:
            begun = await begin
        if begun is None:
            self._wakeups.lease_lost(claims[-1].worker_id)
            return None
        if probes.hooks:
            await probes.reach("executor.begun", ids=list(begun.states))
        return begun, loaded

    async def _launch_all(self, left: deque[Claim], begun: StartedClaims, loaded: Inputs | None) -> None:
        worker_id = left[-1].worker_id
        while left:
            self._launch(left, begun, loaded, worker_id)
            if left:
                await asyncio.sleep(0)  # the launched steps run, and their commits start, before the rest is launched

    def _launch(self, left: deque[Claim], begun: StartedClaims, loaded: Inputs | None, worker_id: int) -> None:
        for _ in range(min(AT_ONCE, len(left))):
            claim = left.popleft()
            state = begun.states.get(claim.id)
            if state is None or claim.worker_id != worker_id:
                self.ready_queue.drop_unstarted(claim)  # lost before it was marked started, or its lease has ended
                continue
            active = self.ready_queue.start(claim)
            if active is not None:
                unchecked = claim.id in begun.unchecked
                inputs = Read(state, None, unchecked) if loaded is None else loaded.beside(claim.id, state, unchecked)
                self._wakeups.step_ready(active, inputs)

    def _have_ended(self, claims: list[Claim]) -> bool:
        """Whether some of the first steps of these claims have ended, and none runs now: the rest has not started."""
        active_claims = [active for claim in claims if (active := self._active_claims.get(claim.id)) is not None]
        left = [active for active in active_claims if active.free_slot is self.ready_queue.free_slot
                and not active.steps_ahead]
        return len(left) < len(claims) and all(active.task is None for active in left)
