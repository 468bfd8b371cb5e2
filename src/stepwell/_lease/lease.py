"""A worker's row: its id and lease, and the end of leases of dead workers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from stepwell._core.store_errors import Contention
from stepwell._lease.host_identity import is_dead, this_host
from stepwell._store import concurrency_keys, instances
from stepwell._store.connection.pool import Database
from stepwell._store.instances import Reaped
from stepwell._store.migrate import Stamp
from stepwell._store.registrations import workers

log = logging.getLogger("stepwell")


class Lease:
    """The id and lease of this worker. After a lost lease the worker registers again, under a new id."""

    def __init__(
        self, database: Database, queues: Mapping[str, int], labels: Sequence[str], duration: timedelta
    ) -> None:
        self.duration = duration
        self._database = database
        self._queues = dict(queues)
        self._labels = labels
        self.place = this_host()
        self.current: int | None = None  # the worker's id, while it has a lease
        self.timeline: str | None = None  # of the server, when this worker registered

    @property
    def is_held(self) -> bool:
        return self.current is not None

    @property
    def worker_id(self) -> int:
        if self.current is None:
            raise Contention("the worker has no lease")  # lost during this tick, which is repeated
        return self.current

    async def take(self) -> Stamp:
        """Register this worker under a new id; Outage if the server's timeline changes meanwhile. Returns the stamp of
        the schema."""
        era = self._database.era
        registered = await workers.register(
            self._database, self.place, _release(), self._queues, self._labels, self.duration
        )
        self._database.check_era(era)
        timelines = self._database.timelines
        self.timeline = None if timelines is None else timelines.current
        self.current = registered.id
        return registered.stamp

    def drop(self) -> None:
        """Note that the lease is lost."""
        self.current = None

    async def end(self, *, orderly: bool = True) -> None:
        """End the lease. The reaper takes the claims that this worker still has; they count as crashes unless
        `orderly`."""
        if self.current is not None:
            await workers.leave(self._database, [self.current], by_itself=orderly)
            self.current = None

    async def expire_predecessors(self, max_crashes: int, authored: str) -> tuple[list[Reaped], list[str]]:
        """Reap at once the claims of dead workers of this host and boot; also returns the queues of other rows that
        became claimable."""
        neighbours = await workers.neighbours(self._database, self.place, self.worker_id)
        dead = [neighbour.id for neighbour in neighbours if is_dead(neighbour)]
        if not dead:
            return [], []
        log.info("worker: expiring %d dead workers of this host", len(dead))
        return await self.expire(dead, max_crashes, authored)

    async def expire(
        self, dead: Sequence[int], max_crashes: int, authored: str
    ) -> tuple[list[Reaped], list[str]]:
        """End the leases of dead workers and reap their claims; also returns the queues of other rows that became
        claimable, including those admitted to slots that the dead workers had freed."""
        await workers.leave(self._database, dead, by_itself=False)
        reaped: list[Reaped] = []
        freed: list[str] = []
        while lost := await instances.find_executing(self._database, dead):
            rows, queues = await instances.reap(self._database, lost, max_crashes, authored)
            reaped += rows
            freed += queues
            if not rows:  # the remaining rows are locked; the reaper takes them later
                break
        return reaped, freed + await concurrency_keys.free_idle(self._database)


def _release() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only a worker needs it

    try:
        return version("stepwell")
    except PackageNotFoundError:
        return "unknown"
