"""Brings rows over, some at a time, when a queue has become fair, or is so no more."""

from __future__ import annotations

from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import queues
from stepwell._worker.queue_slots import AllQueueSlots


class FairMigration(Service):
    """Works only when it is told that there is something to do, and then until there is no more.

    Claims find every row before and after: only the order hangs on it. Workers that do it at once take different rows.
    """

    def __init__(self, *, database: Database, notifier: Notifier, all_queue_slots: AllQueueSlots) -> None:
        super().__init__("fair_migration")
        self._database = database
        self._notifier = notifier
        self._all_queue_slots = all_queue_slots

    async def tick(self) -> float | None:
        moved = await queues.migrate(self._database, self._all_queue_slots.names)
        for queue in set(moved):
            self._notifier.notify_work(queue)  # a claim of that moment passed these rows over
        if probes.hooks:
            await probes.reach("fair_migration.moved", rows=len(moved))
        return 0.0 if moved else None
