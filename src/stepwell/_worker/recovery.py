"""Recovers a worker from a lost lease, a changed timeline of the server, or a lost reply to a claim."""

from __future__ import annotations

import asyncio
import logging

from stepwell._notify.notifier import Notifier
from stepwell._process.stats import Stats
from stepwell._store.connection.pool import Database
from stepwell._worker.active_claims import ActiveClaims
from stepwell._worker.registration import Registration
from stepwell._worker.retirement import Retirement
from stepwell._worker.running.withdrawals import Withdrawals
from stepwell._worker.shutdown import WorkerState
from stepwell._worker.upkeep.timers import Timers
from stepwell._worker.wakeups import Wakeups
from stepwell.errors import SchemaTooNew, VersionInUse

log = logging.getLogger("stepwell")


class Recovery:
    """Stops the steps of a lost lease, and registers the worker again under a new id."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        registration: Registration,
        active_claims: ActiveClaims,
        withdrawals: Withdrawals,
        timers: Timers,
        wakeups: Wakeups,
        retirement: Retirement,
        state: WorkerState,
        stats: Stats,
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._registration = registration
        self._active_claims = active_claims
        self._withdrawals = withdrawals
        self._timers = timers
        self._wakeups = wakeups
        self._retirement = retirement
        self._state = state
        self._stats = stats
        self._old_ids: list[int] = []  # worker ids from before the server's timeline changed
        self.renewals: set[asyncio.Task[None]] = set()  # the running one, if any

    def lose_lease(self, worker_id: int) -> None:
        """The lease of this id has ended: stop its steps, and register again under a new id."""
        lease = self._registration.lease
        if not lease.is_held or lease.worker_id != worker_id:
            return
        lease.drop()
        self._stats.leases_lost += 1
        self._withdrawals.released(self._withdrawals.take_back_all())  # these claims are lost with the lease
        stopped = self._active_claims.abandon(self._active_claims.ids(), "the lease of this worker is lost")
        log.error("worker %d: the lease is lost; %d steps were stopped; registering again", worker_id, stopped)
        if not self._state.is_stopping and all(renewal.done() for renewal in self.renewals):
            renewal = asyncio.create_task(self._renew(), name="stepwell renewal")
            self.renewals.add(renewal)
            renewal.add_done_callback(self.renewals.discard)

    def leave_timeline(self) -> None:
        """The server's timeline has changed, and commits may be lost: this worker's claims no longer hold."""
        lease = self._registration.lease
        if lease.is_held:
            log.error("worker %d: the server's timeline has changed; commits may be lost", lease.worker_id)
            self._old_ids.append(lease.worker_id)
            self.lose_lease(lease.worker_id)

    def note_orphans(self, queues: list[str], count: int) -> None:
        """The heartbeat has released orphaned claims: the reply to the claim statement was lost."""
        self._stats.orphans += count
        log.warning("worker: released %d claims, because the replies to the claim statements were lost", count)
        for queue in set(queues):
            self._notifier.notify_work(queue)

    async def _renew(self) -> None:
        while not self._state.is_stopping:
            try:
                await self._database.outages.outlast("renewal of the lease", self._start_anew)
            except (SchemaTooNew, VersionInUse) as problem:
                self._retirement.begin(problem)
                return
            if self._registration.lease.is_held:  # it may have been lost again
                self._timers.wake()
                self._wakeups.work_available()
                return

    async def _start_anew(self) -> None:
        if self._state.is_stopping:
            return
        if not self._registration.lease.is_held:
            if self._old_ids:  # the server may have lost this worker's declarations
                for queue in await self._registration.declare():
                    self._notifier.notify_work(queue)
            await self._registration.enter()
        if self._old_ids:  # the old leases may exist on the new timeline too
            await self._registration.expire(self._old_ids)
            self._old_ids = []
        await self._registration.free_held()
