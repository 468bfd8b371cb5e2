"""Takes rows from dead workers, and frees rows on hold without reason. One reaper of a cluster acts at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial

from stepwell._core.status import Status
from stepwell._hooks.emitter import Emitter
from stepwell._lease.lease import Lease
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._process.service import Service, all_of
from stepwell._process.stats import Stats
from stepwell._store import concurrency_keys, instances
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import by_halves
from stepwell._store.connection.settings import LONGEST, Bounds
from stepwell._store.instances import Carried, Reaped
from stepwell._store.registrations import workers
from stepwell._worker.upkeep.vacuum_watch import Watchdog
from stepwell._worker.wakeups import Wakeups

log = logging.getLogger("stepwell")

IDLE_PATIENCE = 1.0  # seconds of the search for idle keys and limits in one tick


class Reaper(Service):
    """Every worker has one. All check periodically; a lock decides which one acts."""

    def __init__(
        self, *, database: Database, notifier: Notifier, emitter: Emitter, lease: Lease, stats: Stats,
        every: timedelta, max_crashes: int, authored: str, wakeups: Wakeups,
    ) -> None:  # fmt: skip
        super().__init__("reaper")
        self._database = database
        self._notifier = notifier
        self._emitter = emitter
        self._lease = lease
        self._stats = stats
        self._every = every.total_seconds()
        self._max_crashes = max_crashes
        self._authored = authored
        self._wakeups = wakeups
        self._watchdog = Watchdog(database)
        self._idle = concurrency_keys.IdleSearch(database)

    async def tick(self) -> float | None:
        self._wakeups.versions_changed()
        if self._lease.is_held:
            await all_of(
                self._end_stalled,  # first: their locks delay the other parts
                self._reap_lost,
                self._admit_versions,
                partial(self._watchdog.look, self._lease.worker_id),
                self._free_idle,  # last: it may take longest of all
            )
        if probes.hooks:
            await probes.reach("reaper.ticked")
        return self._every * random.uniform(0.9, 1.0)  # noqa: S311 - jitter, not a secret

    async def _end_stalled(self) -> None:
        """End connections of frozen processes that Postgres does not end in time itself."""
        lease = self._lease.duration
        longest = timedelta(seconds=Bounds.of_worker(lease).idle)
        ended = await workers.end_stalled(
            self._database, self._lease.worker_id, lease, longest, timedelta(seconds=LONGEST)
        )
        for pids, why in ((ended.stalled, "of processes that froze within a statement"),
                          (ended.of_steps, "of steps of workers without a lease")):  # fmt: skip
            if pids:
                log.warning("reaper: ended connections %s: pid %s", why, ", ".join(map(str, pids)))

    async def _reap_lost(self) -> None:
        if lost := await self._find_lost():
            await self._reap(lost)
            await workers.forget(self._database, self._lease.worker_id, self._lease.duration)

    async def _find_lost(self) -> list[Carried]:
        return await instances.find_lost(self._database, self._lease.worker_id, self._lease.duration)

    async def _reap(self, lost: list[Carried]) -> None:
        """Reap lost rows if this reaper is elected; otherwise another reaper does."""
        while lost:
            # Elected per page: Postgres would end a transaction that stays open longer as idle.
            async with workers.elected(self._database, "reaper") as elected:
                answers = (await by_halves(self._reap_page, lost))[0] if elected else []
            reaped = [row for rows, _ in answers for row in rows]
            for rows, freed in answers:
                self.report(rows, freed)
            if probes.hooks and answers:
                await probes.reach("reaper.reaped", ids=[row.id for row in reaped])
            if not reaped:  # other transactions have locked the rest; the next tick retries
                return
            lost = await self._find_lost()

    async def _reap_page(self, lost: Sequence[Carried]) -> tuple[list[Reaped], list[str]]:
        return await instances.reap(self._database, lost, self._max_crashes, self._authored)

    async def _admit_versions(self) -> None:
        self._wake(await instances.admit_versions(self._database))

    async def _free_idle(self) -> None:
        """Admit rows on hold without reason; normally finds none. After IDLE_PATIENCE, the next tick continues."""
        loop = asyncio.get_running_loop()
        until = loop.time() + IDLE_PATIENCE
        self._idle.start_over()
        self._wake(await self._idle.look())
        while not self._idle.is_done and loop.time() < until:
            self._wake(await self._idle.look())

    def report(self, reaped: Sequence[Reaped], freed: Iterable[str]) -> None:
        """Count reaped rows, notify the queues with claimable rows, and notify waiting clients."""
        for row in reaped:
            self._stats.reaped += 1
            if row.status is Status.FAILED:
                log.error("reaper: #%d failed: its step ended %d workers in a row", row.id, self._max_crashes)
            if row.watched and row.status.is_settled:
                self._notifier.publish(notifications.SETTLED, str(row.id))
        self._wake([*freed, *(row.queue for row in reaped if row.status is Status.RUNNABLE)])
        self._emitter.reaped(reaped)

    def _wake(self, queues: Iterable[str]) -> None:
        for queue in set(queues):
            self._notifier.notify_work(queue)
