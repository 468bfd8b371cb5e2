"""Admits rows that wait for slots of limits which a commit has freed; right after the commit, not within it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from stepwell._core.store_errors import Contention, StoreFault
from stepwell._process.service import Service
from stepwell._store import limits
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import by_halves
from stepwell._worker.committing.announcer import Announcer

AGAIN = 0.5  # seconds until a failed admission is tried again
FIRST_PAUSE = 0.05  # between two tries for limits that other transactions have locked
LONGEST_PAUSE = 1.0


class SlotReleases:
    """Slots that are still to be given to waiting rows. If the process dies before, the reaper finds idle slots."""

    def __init__(self, database: Database, announcer: Announcer, service: Service) -> None:
        self._database = database
        self._announcer = announcer
        self._service = service  # calls `make` in its ticks
        self.free = Counter[str]()  # free slots of each limit
        self._late = Counter[str]()  # those of limits that other transactions may have locked
        self.tasks: set[asyncio.Task[None]] = set()  # the task that tries again, if any
        self._made = asyncio.Event()  # set while no slot is left to give
        self._made.set()

    def add(self, limits: Iterable[str]) -> None:
        """Admit one row for each of these limits, soon."""
        for limit in limits:
            (self._late if limit in self._late else self.free)[limit] += 1
            self._made.clear()

    def offer(self, limits: Iterable[str]) -> None:
        """Admit one row for each of these limits after the next tick."""
        self.add(limits)
        self._service.wake()

    async def made(self) -> None:
        """Wait until all slots are given."""
        await self._made.wait()

    async def make(self) -> float | None:
        """Admit the next rows; returns when to try again, if that failed. A lock that another transaction holds delays
        the caller once: a background task tries again."""
        free, self.free = self.free, Counter[str]()
        try:
            await self._admit_next([*free.items()])
        except Contention:
            self._late += free
            if not self.tasks:
                self.tasks.add(asyncio.create_task(self._retry(), name="stepwell offers"))
        except StoreFault as error:
            self.free += free
            self._database.outages.failed(self, "offers of slots", error)
            return AGAIN
        self._database.outages.works(self)
        self._note_made()
        return None

    async def _retry(self) -> None:
        """Admit rows of locked limits until all are admitted, one limit apart from the others."""
        pause = FIRST_PAUSE
        while self._late:
            late = Counter(self._late)
            try:
                _, left = await by_halves(self._admit_next, sorted(late.items()))
            except StoreFault as error:
                self._database.outages.failed(self, "offers of slots", error)
                left = [*late.items()]
            self._late -= late - Counter(dict(left))
            if self._late:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        self.tasks.clear()
        self._note_made()

    async def _admit_next(self, free: Sequence[tuple[str, int]]) -> None:
        self._announcer.may_run(await limits.admit_waiting(self._database, Counter(dict(free)).elements()))

    def _note_made(self) -> None:
        if not (self.free or self._late):
            self._made.set()
