"""After a commit, admits waiting rows to the limit slots that it released."""

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

RETRY_AFTER = 0.5  # seconds until a failed admission is retried
FIRST_PAUSE = 0.05  # between tries for limits that another transaction has locked
LONGEST_PAUSE = 1.0


class SlotReleases:
    """Released slots without an admitted row. If the process dies, a reaper finds the idle slots."""

    def __init__(self, database: Database, announcer: Announcer, service: Service) -> None:
        self._database = database
        self._announcer = announcer
        self._service = service  # calls `admit` in its ticks
        self.free = Counter[str]()  # free slots of each limit
        self._late = Counter[str]()  # free slots of limits that another transaction may have locked
        self.tasks: set[asyncio.Task[None]] = set()  # the retrying task, if any
        self._done = asyncio.Event()  # set while no free slot is left
        self._done.set()

    def add(self, limits: Iterable[str]) -> None:
        """Admit one row for each of these limits, soon."""
        for limit in limits:
            (self._late if limit in self._late else self.free)[limit] += 1
            self._done.clear()

    def offer(self, limits: Iterable[str]) -> None:
        """Admit one row for each of these limits after the next tick."""
        self.add(limits)
        self._service.wake()

    async def done(self) -> None:
        """Wait until rows were admitted to all free slots."""
        await self._done.wait()

    async def admit(self) -> float | None:
        """Admit the next rows; if that fails, returns the seconds until a retry. Limits that another transaction has
        locked delay the caller only once: a background task retries them."""
        free, self.free = self.free, Counter[str]()
        try:
            await self._admit_next([*free.items()])
        except Contention:
            self._late += free
            if not self.tasks:
                self.tasks.add(asyncio.create_task(self._retry(), name="stepwell admissions"))
        except StoreFault as error:
            self.free += free
            self._database.outages.failed(self, "admission to freed slots", error)
            return RETRY_AFTER
        self._database.outages.works(self)
        self._note_done()
        return None

    async def _retry(self) -> None:
        """Retry locked limits until rows were admitted to all their slots; one locked limit delays no other."""
        pause = FIRST_PAUSE
        while self._late:
            late = Counter(self._late)
            try:
                _, left = await by_halves(self._admit_next, sorted(late.items()))
            except StoreFault as error:
                self._database.outages.failed(self, "admission to freed slots", error)
                left = [*late.items()]
            self._late -= late - Counter(dict(left))
            if self._late:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        self.tasks.clear()
        self._note_done()

    async def _admit_next(self, free: Sequence[tuple[str, int]]) -> None:
        self._announcer.may_run(await limits.admit_waiting(self._database, Counter(dict(free)).elements()))

    def _note_done(self) -> None:
        if not (self.free or self._late):
            self._done.set()
