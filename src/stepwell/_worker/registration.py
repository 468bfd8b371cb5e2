"""Registers a worker in the database: its machines, limits and queues, then its lease; and what it frees by that."""

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
    """Done when the worker starts, and again when its lease is lost or the server may have lost its declarations."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        notifier: Notifier,
        settings: Settings,
        all_queue_slots: AllQueueSlots,
        lease: Lease,
        reaper: Reaper,
    ) -> None:
        self.lease = lease
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._all_queue_slots = all_queue_slots
        self._reaper = reaper

    async def declare(self) -> set[str]:
        """Declare machines, limits and queues; returns the queues in which rows may run by it."""
        await machines.register(self._database, self._registry.all(), self._settings.retention)
        freed = await limits.declare(self._database, self._registry.limits.all())
        await retried(self._declare_queues)
        return set(freed)

    async def _declare_queues(self) -> None:
        """Write by what this worker's queues are fair; if workers declare it differently, the last one decides."""
        fair_by = self._settings.fair_by
        self._all_queue_slots.note_fair(fair_by)
        declared = await queues.declare(self._database, {name: fair_by.get(name) for name in self._settings.queues})
        for queue in declared:
            how = "not shared out" if queue.fair_by is None else f"shared out by {queue.fair_by}"
            if queue.is_changed:
                log.warning("worker: queue %r is %s from now on; it was declared otherwise before, and the last worker "
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
        """Free the rows that waited for code which this worker has."""
        freed = await instances.admit_versions(
            self._database, self._registry.labels(), self._registry.upcasting(), also_unfit=True
        )
        for queue in freed:
            self._notifier.notify_work(queue)

    async def expire(self, worker_ids: Sequence[int]) -> None:
        """End the leases of workers that have ended, and return what they had claimed."""
        settings = self._settings
        self._reaper.report(*await self.lease.expire(worker_ids, settings.max_crashes, self._registry.authored()))

    async def leave(self, *, is_orderly: bool) -> bool:
        """End the lease of a worker that stops; False if the database does not take that now."""
        try:
            await self.lease.end(orderly=is_orderly)
        except StoreFault as error:
            log.warning("worker: could not end its lease (%s); it runs out by itself", error)
            return False
        return True
