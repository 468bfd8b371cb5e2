"""Takes rows from workers that died, and finds what else should not wait. One acts at a time in a cluster."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from stepwell import _probes
from stepwell._core.status import Status
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.lease import Lease
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.tally import Tally
from stepwell._service import Service
from stepwell._store import instances, keys, workers
from stepwell._store.database import Database
from stepwell._store.instances import Carried, Reaped

log = logging.getLogger("stepwell")


class Reaper(Service):
    """Any worker can be it. All look now and then; an advisory lock says which one acts."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        emitter: Emitter,
        lease: Lease,
        tally: Tally,
        every: timedelta,
        max_crashes: int,
        forget_versions: Callable[[], None],
    ) -> None:
        super().__init__("reaper")
        self._database = database
        self._notifier = notifier
        self._emitter = emitter
        self._lease = lease
        self._tally = tally
        self._every = every.total_seconds()
        self._max_crashes = max_crashes
        self._forget_versions = forget_versions

    async def tick(self) -> float | None:
        self._forget_versions()
        if self._lease.is_held:
            if lost := await self._find_lost():
                await self._reap(lost)
            await self._free()
            await workers.forget(self._database)
        return self._every * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret

    async def _find_lost(self) -> list[Carried]:
        return await instances.find_lost(self._database, self._lease.worker_id, self._lease.duration)

    async def _reap(self, lost: list[Carried]) -> None:
        """Everybody looks; who finds something first acts, and the others leave it to that one."""
        async with workers.elected(self._database, "reaper") as elected:
            while elected and lost:
                reaped, freed = await instances.reap(self._database, lost, self._max_crashes)
                self.report(reaped, freed)
                if _probes.hooks:
                    await _probes.reach("reaper.reaped", ids=[row.id for row in reaped])
                if not reaped:  # what is left is locked by others; the next tick comes for it
                    return
                lost = await self._find_lost()

    async def _free(self) -> None:
        """Free what should not be held any more; normally finds nothing."""
        self._wake(await keys.free_idle(self._database))
        self._wake(await instances.unhold_version(self._database))

    def report(self, reaped: Sequence[Reaped], freed: Iterable[str]) -> None:
        """Count what was reaped, wake its queues and those of others that go on by it, tell who waits for its end."""
        for row in reaped:
            self._tally.reaped += 1
            if row.status is Status.FAILED:
                log.error("reaper: #%d failed: its step ended %d workers in a row", row.id, self._max_crashes)
            if row.watched and row.status.is_settled:
                self._notifier.announce_settled(row.id)
        self._wake([*freed, *(row.queue for row in reaped if row.status is Status.RUNNABLE)])
        self._emitter.reaped(reaped)

    def _wake(self, queues: Iterable[str]) -> None:
        for queue in set(queues):
            self._notifier.announce_work(queue)
