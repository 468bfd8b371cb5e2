"""Deletes what has ended and is old enough, in bounded batches, one worker at a time; and buckets that are full."""

from __future__ import annotations

import logging
import random
from datetime import timedelta

from stepwell import _probes
from stepwell._service import Service
from stepwell._store import instances, limits
from stepwell._store.database import Database

log = logging.getLogger("stepwell")

FULL_BATCH = 1_000


class Pruner(Service):
    """Any worker can be it, the statement itself lets one act; retention is per machine, as its table says."""

    def __init__(self, database: Database, every: timedelta) -> None:
        super().__init__("pruner")
        self._database = database
        self._every = every.total_seconds()

    async def tick(self) -> float | None:
        deleted, largest = await instances.prune(self._database)
        if deleted:
            log.debug("pruner: %d instances deleted", deleted)
        if _probes.hooks:
            await _probes.reach("pruner.pruned", deleted=deleted)
        if largest == FULL_BATCH:
            return 0.0  # more is waiting
        await limits.prune(self._database)
        return self._every * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret
