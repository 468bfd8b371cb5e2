"""Deletes the inboxes of ended instances in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from stepwell._core.store_errors import StoreFault
from stepwell._store import signals
from stepwell._store.connection.pool import Database

log = logging.getLogger("stepwell")


class InboxSweeper:
    """Runs one background task at a time. The pruner deletes inboxes that remain after an outage."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ended: list[int] = []  # instances with inboxes to delete
        self.task: asyncio.Task[None] | None = None

    def sweep_soon(self, ended: Sequence[int]) -> None:
        """Delete the inboxes of these instances."""
        self._ended += ended
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._sweep(), name="stepwell sweep")

    async def _sweep(self) -> None:
        while self._ended:
            ended, self._ended = self._ended, []
            try:
                await signals.sweep(self._database, ended)
            except StoreFault as error:
                log.debug("committer: could not delete %d inboxes; the pruner will: %s", len(ended), error)

    async def stop(self, patience: float) -> None:
        """Wait for the running task, at most `patience` seconds."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=patience)
