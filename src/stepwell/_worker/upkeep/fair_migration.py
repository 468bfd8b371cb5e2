"""Updates the shares of rows, page by page, after a queue became fair or stopped being fair."""

from __future__ import annotations

from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import queues
from stepwell._worker.queue_slots import AllQueueSlots


class FairMigration(Service):
    """Runs when the timers find rows with a wrong share, until none are left.

    Claims find every row before and after: only their order changes. Concurrent workers update different rows.
    """

    def __init__(self, *, database: Database, notifier: Notifier, all_queue_slots: AllQueueSlots) -> None:
        super().__init__("fair_migration")
        self._database = database
        self._notifier = notifier
        self._all_queue_slots = all_queue_slots

    async def tick(self) -> float | None:
        moved = await queues.migrate(self._database, self._all_queue_slots.names)
        for queue in set(moved):
            self._notifier.notify_work(queue)  # a concurrent claim may have skipped these rows
        if probes.hooks:
            await probes.reach("fair_migration.moved", rows=len(moved))
        return 0.0 if moved else None
