"""Offers slots of limits, that are free by a commit, to those who wait for one; right after it, not within it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from stepwell._core.faults import StoreFault
from stepwell._store import slots
from stepwell._store.database import Database

log = logging.getLogger("stepwell")

AGAIN = 0.5  # seconds, until slots are offered again that could not be


class Offers:
    """What is still to be offered. If the process dies before that, whoever buries it looks for idle slots."""

    def __init__(self, database: Database, announce: Callable[[Iterable[str]], None]) -> None:
        self._database = database
        self._announce = announce
        self._free: list[str] = []  # limits, once for each slot
        self._made = asyncio.Event()  # nothing is to be offered
        self._made.set()

    def add(self, limits: list[str]) -> None:
        """Offer a slot of each, soon."""
        if limits:
            self._free += limits
            self._made.clear()

    async def made(self) -> None:
        """Wait until all have been offered."""
        await self._made.wait()

    async def make(self) -> float | None:
        """Let the next ones go; returns when to try again, if that did not work."""
        if not self._free:
            return None
        free = self._free[:]
        try:
            self._announce(await slots.let_go(self._database, free))
        except StoreFault as error:
            log.warning("flusher: nobody was let go for %d slots: %s; trying again", len(free), error)
            return AGAIN
        del self._free[: len(free)]
        if not self._free:
            self._made.set()
        return None
