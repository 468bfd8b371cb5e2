"""A database with one worker's connection on it, that claims and commits batches as a worker does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from benchmarks.growth.meter import Cost, Meter
from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._store import flushes, instances, shortcuts, workers
from stepwell._store.database import WORKER, Database
from stepwell._store.workers import Place

BATCH = 100
QUEUE = "default"
MACHINE, STEP = "order", "ship"
LABELS = [f"{MACHINE}@1"]
TABLES = ("instances", "instance_data", "signals", "workers")


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of claiming, beginning and committing took."""

    claim: Cost
    begin: Cost
    commit: Cost

    @property
    def all(self) -> Cost:
        return self.claim + self.begin + self.commit


class Site:
    """One database of a scenario."""

    def __init__(self, url: str, database: Database, observer: asyncpg.Connection, meter: Meter, worker: int) -> None:
        self.url = url
        self.database = database  # as a worker has it, of one connection
        self.observer = observer  # a plain connection: fills, vacuums, looks
        self.worker = worker
        self.worked = 0  # steps of `work` since it was emptied
        self.meter = meter
        self._is_bare = True  # what waits needs nothing but a worker, as far as is known

    async def round(self, batch: int = BATCH) -> Round:
        """Claim a batch, begin it, commit it as done: through the statements and calls of a worker."""
        async with self.meter.measured():
            claims = await self._claim(batch)
        claim = self.meter.cost
        if len(claims) != batch:
            raise RuntimeError(f"{len(claims)} rows were claimed, and not {batch}")
        async with self.meter.measured():
            await workers.begin(self.database, self.worker, claims[-1].claimed_at, [], [c.id for c in claims])
        begin = self.meter.cost
        async with self.meter.measured():
            await self._commit([done(claim) for claim in claims])
        return Round(claim, begin, self.meter.cost)

    async def turns(self, number: int) -> Round:
        """Rounds of one row each: what a hot key allows."""
        parts = [await self.round(1) for _ in range(number)]
        return Round(
            sum((part.claim for part in parts), Cost()), sum((part.begin for part in parts), Cost()),
            sum((part.commit for part in parts), Cost()),
        )  # fmt: skip

    async def work(self, rows: int, batch: int = 500, steps: int = 1) -> None:
        """Claim and commit so many rows, unmeasured; with more than one step, the others run ahead."""
        for begun in range(0, rows, batch):
            wanted = min(batch, rows - begun)
            claims = await self._claim(wanted)
            await workers.begin(self.database, self.worker, claims[-1].claimed_at, [], [claim.id for claim in claims])
            for left in range(steps - 1, 0, -1):
                commits = [goes_on(claim, left) for claim in claims]
                await self._commit(commits)
                claims = [commit.continues_as for commit in commits]
            await self._commit([done(claim) for claim in claims])
            self.worked += wanted * steps

    async def _claim(self, batch: int) -> list[Claim]:
        """As a worker does: the short way, while that finds something."""
        if self._is_bare:
            claims, _ = await shortcuts.claim_bare(self.database, self.worker, QUEUE, batch, LABELS, [])
            if claims:
                return claims
        claimed = await instances.claim(self.database, self.worker, QUEUE, batch, LABELS)
        self._is_bare = claimed.is_bare
        return claimed.claims

    async def _commit(self, commits: list[Commit]) -> None:
        """As a worker does: the short way for what is bare."""
        barely = all(commit.is_bare for commit in commits)
        flushed = await flushes.flush(self.database, commits, barely=barely)
        if not flushed.is_as_meant and len(flushed.committed) != len(commits):
            raise RuntimeError(f"{len(flushed.committed)} rows were committed, and not {len(commits)}")

    async def empty(self) -> None:
        """Begin anew."""
        self.worked = 0
        self._is_bare = True
        await self.observer.execute("truncate stepwell.instances, stepwell.instance_data, stepwell.signals")

    async def vacuum(self) -> None:
        """As autovacuum would; it is off here, so that nothing happens by chance."""
        await self.observer.execute(f"vacuum (analyze) {', '.join(f'stepwell.{table}' for table in TABLES)}")


def done(claim: Claim) -> Commit:
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=claim.version, attempt=claim.attempt, result="{}"
    )


def goes_on(claim: Claim, left: int) -> Commit:
    """To the same step once more, on the same claim, with a new state."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step=claim.step, version=claim.version, attempt=0, goes_on=True,
        state=f'{{"left": {left}}}',
    )  # fmt: skip


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Site]:
    """A site on a migrated database without rows."""
    observer = await asyncpg.connect(url)
    try:
        for table in TABLES:
            await observer.execute(f"alter table stepwell.{table} set (autovacuum_enabled = off)")
        async with Database(url, session=WORKER, most=1) as database:
            place = Place("growth", "boot", 1, "process")
            worker = await workers.register(database, place, "0", {QUEUE: BATCH}, LABELS, timedelta(days=1))
            yield Site(url, database, observer, Meter(database, observer), worker)
    finally:
        await observer.close()
