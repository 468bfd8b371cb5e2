"""Brings rows over, some at a time, when a queue has become fair, or is so no more."""

from __future__ import annotations

from stepwell import _probes
from stepwell._runtime.lanes import Lanes
from stepwell._runtime.notifier import Notifier
from stepwell._service import Service
from stepwell._store import shares
from stepwell._store.database import Database


class Sharer(Service):
    """Works only when it is told that there is something to do, and then until there is no more.

    Claims find every row before and after: only the order hangs on it. Workers that do it at once take different rows.
    """

    def __init__(self, *, database: Database, notifier: Notifier, lanes: Lanes) -> None:
        super().__init__("sharer")
        self._database = database
        self._notifier = notifier
        self._lanes = lanes

    async def tick(self) -> float | None:
        moved = await shares.bring_over(self._database, self._lanes.names)
        for queue in set(moved):
            self._notifier.announce_work(queue)  # a claim of that moment passed these rows over
        if _probes.hooks:
            await _probes.reach("sharer.moved", rows=len(moved))
        return 0.0 if moved else None
