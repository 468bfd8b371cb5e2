"""A worker's entry in the database: its id, its lease, and the burial of those who died before it on this host."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from stepwell._runtime.place import here, is_dead
from stepwell._store import instances, keys, workers
from stepwell._store.database import Database
from stepwell._store.instances import Reaped

log = logging.getLogger("stepwell")


class Lease:
    """Who this worker is. The id changes when the lease was lost and the worker starts anew."""

    def __init__(
        self, database: Database, queues: Mapping[str, int], labels: Sequence[str], duration: timedelta
    ) -> None:
        self.duration = duration
        self._database = database
        self._queues = dict(queues)
        self._labels = labels
        self._place = here()
        self._worker_id: int | None = None

    @property
    def current(self) -> int | None:
        """The worker's id while it has a lease."""
        return self._worker_id

    @property
    def is_held(self) -> bool:
        return self._worker_id is not None

    @property
    def worker_id(self) -> int:
        if self._worker_id is None:
            raise RuntimeError("the worker has no lease")  # a tick asks is_held first
        return self._worker_id

    async def take(self) -> int:
        """Enter this worker under a new id."""
        self._worker_id = await workers.register(
            self._database, self._place, _release(), self._queues, self._labels, self.duration
        )
        return self._worker_id

    def drop(self) -> None:
        """Know that the lease is gone."""
        self._worker_id = None

    async def end(self) -> None:
        """Leave: what this worker still carries is the reaper's from now on."""
        if self._worker_id is not None:
            await workers.leave(self._database, [self._worker_id], by_itself=True)
            self._worker_id = None

    async def bury_predecessors(self, max_crashes: int) -> tuple[list[Reaped], list[str]]:
        """Reap at once what dead workers of this host and boot have left behind; also returns the queues of others
        that go on by it."""
        neighbours = await workers.neighbours(self._database, self._place, self.worker_id)
        dead = [neighbour.id for neighbour in neighbours if is_dead(neighbour)]
        if not dead:
            return [], []
        log.info("worker: burying %d dead workers of this host", len(dead))
        return await self.bury(dead, max_crashes)

    async def bury(self, dead: Sequence[int], max_crashes: int) -> tuple[list[Reaped], list[str]]:
        """End the leases of dead workers and reap what they left; also returns the queues of others that go on, also
        behind slots that the dead had not offered to them yet."""
        await workers.leave(self._database, dead, by_itself=False)
        reaped: list[Reaped] = []
        freed: list[str] = []
        while lost := await instances.find_carried(self._database, dead):
            rows, queues = await instances.reap(self._database, lost, max_crashes)
            reaped += rows
            freed += queues
            if not rows:  # what is left is locked; the reaper comes for it
                break
        return reaped, freed + await keys.free_idle(self._database)


def _release() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only a worker pays for it

    try:
        return version("stepwell")
    except PackageNotFoundError:
        return "unknown"
