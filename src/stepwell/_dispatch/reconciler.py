"""Closes the interactions of large ended units, and looks for inconsistent interactions, units and joins.

A completion is accepted, counted at its unit and wakes its instance in one transaction, so only a crash between claim
and send needs repair. The other checks normally find nothing, and count what they find.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import timedelta

from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._process.stats import Stats
from stepwell._store import await_units, interactions
from stepwell._store.await_units import ReconcilePlace, Settled
from stepwell._store.connection.pool import Database

log = logging.getLogger("stepwell")

LOOKS_APART = 10  # checks for dead dispatchers per round of consistency checks
PAGE_PAUSE = 0.5  # seconds between two pages of a round: 100,000 waiting rows take less than two minutes
END = ReconcilePlace(None, None, None)


class Reconciler(Service):
    """Releases the interactions of dead dispatchers, and checks waiting rows, round by round and page by page."""

    def __init__(
        self,
        *,
        database: Database,
        lease: Lease,
        stats: Stats,
        every: timedelta,
        sends: bool,
        settled: Callable[[Settled], None],
    ) -> None:
        super().__init__("reconciler")
        self._database = database
        self._lease = lease
        self._stats = stats
        self._every = every.total_seconds()
        self._sends = sends
        self._settled = settled
        self._looks = 0
        self._look_at = 0.0  # when to check for dead dispatchers again
        self._after = END
        self._cleans_up = True  # until it has found nothing to clean up

    async def tick(self) -> float | None:
        if not self._lease.is_held:
            return self._pause()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._look_at:
            await self._look()
            self._look_at = loop.time() + self._pause()
        if self._cleans_up:
            await self._clean_up()
            return 0.0
        if not self._after.is_end:
            await self._reconcile()
        rest = max(self._look_at - loop.time(), 0.0)
        return rest if self._after.is_end else min(rest, PAGE_PAUSE)

    def clean_up(self) -> None:
        """Look at once for ended units with many open interactions."""
        self._cleans_up = True
        self.wake()

    def _pause(self) -> float:
        return self._every * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret

    async def _look(self) -> None:
        """Check for dead dispatchers; every LOOKS_APART checks, start a round unless one is running."""
        if self._sends:
            await self._send_again()
        if self._looks % LOOKS_APART == 0 and self._after.is_end:
            self._after = ReconcilePlace()
            self._cleans_up = True
        self._looks += 1

    async def _clean_up(self) -> None:
        """Close one page of a large ended unit; other workers clean up other units."""
        queues = await await_units.clean_up(self._database)
        self._cleans_up = queues is not None
        if queues:
            self._settled(Settled(queues=queues))
        if probes.hooks:
            await probes.reach("reconciler.cleaned", has_more=self._cleans_up)

    async def _send_again(self) -> None:
        lost = await interactions.release_lost(self._database)
        if lost:
            self._stats.sent_again += len(lost)
            log.warning("reconciler: sending %d interactions again: the workers that sent them are dead", len(lost))
            self._settled(Settled(transports=sorted(set(lost))))

    async def _reconcile(self) -> None:
        repaired = await await_units.reconcile(self._database, self._after)
        self._after = repaired.after
        found = (repaired.released, repaired.closed, repaired.recounted, repaired.started, repaired.joined)
        number = sum(map(len, found))
        if number:
            self._stats.reconciled += number
            log.error(
                "reconciler: found and repaired inconsistent rows: instances %s waited for nothing, units %s had no "
                "instance, units %s had a wrong count, units %s had replies without a continuation, instances %s "
                "waited for children that have all ended",
                *map(list, found),
            )
            self._settled(repaired.settled)
        if probes.hooks:
            await probes.reach("reconciler.looked", repaired=number)
