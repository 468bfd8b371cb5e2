"""A database with one worker's connection, which claims and commits batches as a worker does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from benchmarks.growth.meter import Cost, Meter
from stepwell._core.commit import Commit, Values
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.operations.claim import ClaimPaths, ClaimRequest, claim
from stepwell._store.operations.commit import CommitPaths, commit
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity

BATCH = 100
QUEUE = "default"
MACHINE, STEP = "order", "ship"
LABELS = [f"{MACHINE}@1"]
TABLES = ("instances", "instance_data", "signals", "workers")


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of claiming, marking started and committing took."""

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
        self._claim_paths = ClaimPaths()
        self._commit_paths = CommitPaths()

    async def round(self, batch: int = BATCH) -> Round:
        """Claim a batch, mark it started, commit it as done: through the statements and calls of a worker."""
        async with self.meter.measured():
            claims = await self._claim(batch)
        claim = self.meter.cost
        if len(claims) != batch:
            raise RuntimeError(f"{len(claims)} rows were claimed instead of {batch}")
        async with self.meter.measured():
            await workers.mark_started(self.database, claims[-1].claimed_at, [], claims)
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
        """Claim and commit rows, unmeasured; with more than one step, the others run ahead."""
        for begun in range(0, rows, batch):
            wanted = min(batch, rows - begun)
            claims = await self._claim(wanted)
            await workers.mark_started(self.database, claims[-1].claimed_at, [], claims)
            for left in range(steps - 1, 0, -1):
                commits = [next_commit(claim, left) for claim in claims]
                await self._commit(commits)
                claims = [commit.continues_as for commit in commits]
            await self._commit([done(claim) for claim in claims])
            self.worked += wanted * steps

    async def _claim(self, batch: int) -> list[Claim]:
        """As a worker does."""
        wanted = ClaimRequest(worker_id=self.worker, queue=QUEUE, limit=batch, labels=LABELS)
        return (await claim(self.database, wanted, self._claim_paths)).claims

    async def _commit(self, commits: list[Commit]) -> None:
        """As a worker does: the fast path for simple rows."""
        flushed = await commit(self.database, commits, self._commit_paths)
        if not flushed.is_as_sent and len(flushed.committed) != len(commits):
            raise RuntimeError(f"{len(flushed.committed)} rows were committed instead of {len(commits)}")

    async def empty(self) -> None:
        """Remove all rows."""
        self.worked = 0
        self._claim_paths = ClaimPaths()
        self._commit_paths = CommitPaths()
        await self.observer.execute("truncate stepwell.instances, stepwell.instance_data, stepwell.signals")

    async def vacuum(self) -> None:
        """As autovacuum would; it is off here, so that it cannot run at random moments."""
        await self.observer.execute(f"vacuum (analyze) {', '.join(f'stepwell.{table}' for table in TABLES)}")


def done(claim: Claim) -> Commit:
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=claim.version, attempt=claim.attempt,
        values=Values(result="{}"),
    )  # fmt: skip


def next_commit(claim: Claim, left: int) -> Commit:
    """To the same step once more, on the same claim, with a new state."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step=claim.step, version=claim.version, attempt=0, runs_ahead=True,
        values=Values(state=f'{{"left": {left}}}'),
    )  # fmt: skip


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Site]:
    """A site on a migrated database without rows."""
    observer = await asyncpg.connect(url)
    try:
        for table in TABLES:
            await observer.execute(f"alter table stepwell.{table} set (autovacuum_enabled = off)")
        async with Database(url, session=WORKER, most=1) as database:
            place = HostIdentity("growth", "boot", 1, "process")
            worker = (await workers.register(database, place, "0", {QUEUE: BATCH}, LABELS, timedelta(days=1))).id
            yield Site(url, database, observer, Meter(database, observer), worker)
    finally:
        await observer.close()
