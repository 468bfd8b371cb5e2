"""Deletes instances past their retention, in batches, one worker at a time. Also deletes full buckets, and the rows of
dead workers without claims."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from functools import partial

from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.service import Service, all_of
from stepwell._store import limits, retention
from stepwell._store.connection.pool import Database
from stepwell._store.registrations import workers

log = logging.getLogger("stepwell")

FULL_BATCH = 1_000


class Pruner(Service):
    """Every worker has one; the statement lets only one of them delete. Retention is set per machine."""

    def __init__(self, database: Database, lease: Lease, every: timedelta) -> None:
        super().__init__("pruner")
        self._database = database
        self._lease = lease
        self._every = every.total_seconds()

    async def tick(self) -> float | None:
        deleted, largest = await retention.prune(self._database)
        if deleted:
            log.debug("pruner: %d instances deleted", deleted)
        if probes.hooks:
            await probes.reach("pruner.pruned", deleted=deleted)
        if largest >= FULL_BATCH:
            return 0.0  # more instances remain
        await all_of(self._forget, partial(limits.prune, self._database))
        return self._every * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret

    async def _forget(self) -> None:
        if self._lease.is_held:
            await workers.forget(self._database, self._lease.worker_id, self._lease.duration)
