"""Registers a worker in the database: its machines, limits and queues, then its lease."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stepwell._core.registry import Registry
from stepwell._core.store_errors import StoreFault
from stepwell._lease.lease import Lease
from stepwell._notify.notifier import Notifier
from stepwell._store import instances, limits
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import retried
from stepwell._store.registrations import machines, queues
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.upkeep.reaper import Reaper
from stepwell.config import Settings

log = logging.getLogger("stepwell")


class Registration:
    """Runs at the start, and again after a lost lease or if the server may have lost the declarations."""

    def __init__(
        self, *, database: Database, registry: Registry, notifier: Notifier, settings: Settings,
        all_queue_slots: AllQueueSlots, lease: Lease, reaper: Reaper,
    ) -> None:  # fmt: skip
        self.lease = lease
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._all_queue_slots = all_queue_slots
        self._reaper = reaper

    async def declare(self) -> set[str]:
        """Declare machines, limits and queues; returns the queues in which rows became claimable."""
        await machines.register(self._database, self._registry.all(), self._settings.retention)
        freed = await limits.declare(self._database, self._registry.limits.all())
        await retried(self._declare_queues)
        return set(freed)

    async def _declare_queues(self) -> None:
        """Write the fairness keys of this worker's queues; if workers differ, the last declaration counts."""
        fair_by = self._settings.fair_by
        self._all_queue_slots.note_fair(fair_by)
        declared = await queues.declare(self._database, {name: fair_by.get(name) for name in self._settings.queues})
        for queue in declared:
            how = "not fair" if queue.fair_by is None else f"fair by {queue.fair_by}"
            if queue.is_changed:
                log.warning("worker: queue %r is now %s; another worker declared it differently, and the last worker "
                            "to start decides: see the setting fair_by", queue.queue, how)
            else:
                log.info("worker: queue %r is %s", queue.queue, how)
        if declared:
            self._notifier.publish(notifications.QUEUES)

    async def enter(self) -> None:
        """Take a lease under a new worker id, and end the leases of dead workers of this host."""
        if (problem := (await self.lease.take()).problem) is not None:
            raise problem
        settings = self._settings
        self._reaper.report(*await self.lease.expire_predecessors(settings.max_crashes, self._registry.authored()))

    async def free_held(self) -> None:
        """Admit the rows on hold that this worker's code can run."""
        freed = await instances.admit_versions(
            self._database, self._registry.labels(), self._registry.upcasting(), also_unfit=True
        )
        for queue in freed:
            self._notifier.notify_work(queue)

    async def expire(self, worker_ids: Sequence[int]) -> None:
        """End the leases of workers that have ended, and reap their claims."""
        settings = self._settings
        self._reaper.report(*await self.lease.expire(worker_ids, settings.max_crashes, self._registry.authored()))

    async def leave(self, *, is_orderly: bool) -> bool:
        """End the lease of a stopping worker; False if that fails."""
        try:
            await self.lease.end(orderly=is_orderly)
        except StoreFault as error:
            log.warning("worker: could not end its lease (%s); the lease will expire", error)
            return False
        return True
