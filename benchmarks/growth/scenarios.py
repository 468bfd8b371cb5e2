"""The rows around the 100, by name: each fills one database, and another one with as little as its work needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter

import asyncpg

from benchmarks.growth.fills import Kind, fill
from benchmarks.growth.site import BATCH, LABELS, MACHINE, QUEUE, STEP, Site
from stepwell import Context, Done, Engine, Machine, step
from stepwell._core.commit import Commit, Park
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Status
from stepwell._store.operations.claim import ClaimRequest, claim_full
from stepwell._store.operations.commit import CommitPaths, commit

MOST = 1.3  # times the empty case
SHIFT = 5_000  # rows worked between two looks at the clock


@dataclass
class Nothing:
    """An empty state."""


class Order(Machine, name=MACHINE, initial=STEP, state=Nothing):
    """The machine of the rows; no worker runs it, its rows are claimed and committed through the store."""

    @step
    async def ship(self, ctx: Context[Nothing]) -> Done:
        return Done()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of this run."""

    rounds: int  # measured
    warm_ups: int
    turns: int  # of a key in one round
    divisor: int = 1  # of all other rows
    minutes: float = 0.0  # that a transaction is held open; 0: for a number of steps instead

    @property
    def supply(self) -> int:
        """Rows that the rounds need."""
        return (self.rounds + self.warm_ups) * BATCH

    @property
    def of_turns(self) -> Sizes:
        """Fewer rounds: one of a hundred turns is long."""
        return replace(self, rounds=-(-self.rounds // 5), warm_ups=1)

    def rows(self, normal: int) -> int:
        return max(normal // self.divisor, 1)


Fill = Callable[[Site, Sizes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One case: what is filled in, against what, and how much more the rows may cost."""

    name: str
    label: str
    around: Fill
    alone: Fill
    most: float | None = MOST
    is_turns: bool = False  # one row at a time
    holds: bool = False  # while a transaction is held open


async def supply(site: Site, sizes: Sizes) -> None:
    """Only the rows of the rounds."""
    await fill(site.url, Kind(), sizes.supply)
    await site.vacuum()


def beside(kind: Kind, rows: int, *others: Kind) -> Fill:
    """Rows of each of some kinds, most of them written before those of the rounds."""

    async def around(site: Site, sizes: Sizes) -> None:
        for each in (kind, *others):
            await fill(site.url, each, sizes.rows(rows))
        await fill(site.url, Kind(), sizes.supply)
        await site.vacuum()

    return around


async def start_many(site: Site, number: int) -> None:
    """Through the engine's API; nothing has been vacuumed or analyzed since."""
    engine = Engine(site.url, machines=[Order])
    async with engine:
        await engine.start_many([Order.child({})] * number)


async def spawn(site: Site, parents: int, children: int) -> None:
    """Parents with commits that insert their children, in the worker's own way; each in its own transaction."""
    await fill(site.url, Kind(), parents)
    child = NewInstance(
        machine=MACHINE, version=1, step=STEP, queue=QUEUE, priority=0, due=None, tenant="",
        concurrency_key=None, state="{}",
    )  # fmt: skip
    claimed = await claim_full(
        site.database, ClaimRequest(worker_id=site.worker, queue=QUEUE, limit=parents, labels=LABELS)
    )
    for claim in claimed.claims:
        spawned = Commit(
            claim=claim, status=Status.AWAITING_CHILDREN, step=STEP, version=1, attempt=0,
            park=Park(children=(child,) * children),
        )  # fmt: skip
        await commit(site.database, [spawned], CommitPaths())


async def executing(site: Site, sizes: Sizes) -> None:
    """Another worker's claims."""
    await beside(Kind("executing", worker=str(site.worker + 1)), 2_000)(site, sizes)


async def behind_key(site: Site, rows: int) -> None:
    """A wait queue behind one key; its first row may be admitted."""
    hot = Kind(key="'hot'")
    await fill(site.url, hot, 1)
    await fill(site.url, replace(hot, hold="'key'"), rows)
    await site.vacuum()


async def worked(site: Site, sizes: Sizes) -> None:
    """Steps done since the last vacuum: each has left dead entries in the indexes."""
    rows = sizes.rows(100_000)
    await fill(site.url, Kind(), rows + sizes.supply)
    await site.vacuum()
    await site.work(rows)


async def worked_for(site: Site, sizes: Sizes) -> None:
    """The same; if minutes are given, for that long."""
    if not sizes.minutes:
        await worked(site, sizes)
        return
    over = perf_counter() + sizes.minutes * 60
    while perf_counter() < over:
        await fill(site.url, Kind(), SHIFT)
        await site.work(SHIFT)
    await fill(site.url, Kind(), sizes.supply)


@asynccontextmanager
async def held_open(url: str) -> AsyncIterator[None]:
    """Hold a transaction in the same database that has taken its snapshot."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    try:
        await connection.fetchval("select count(*) from stepwell.machines")
        yield
    finally:
        await transaction.rollback()
        await connection.close()


HOT = Kind(hold="'key'", priority=-9, key="'hot'")
ALL = {
    scenario.name: scenario
    for scenario in (
        Scenario("start_many", "`start_many` of 100,000, just inserted, not analyzed",
                 lambda site, sizes: start_many(site, sizes.rows(100_000) + sizes.supply),
                 lambda site, sizes: start_many(site, sizes.supply)),
        Scenario("spawn", "a spawn of 10,000: its children, against those of spawns of 100",
                 lambda site, sizes: spawn(site, 1, sizes.rows(10_000) + sizes.supply),
                 lambda site, sizes: spawn(site, sizes.supply // BATCH, BATCH)),
        Scenario("behind_key", "100,000 behind one busy key, at an urgent priority", beside(HOT, 100_000), supply),
        Scenario("key_turns", "100 turns of that key itself, against a short wait queue",
                 lambda site, sizes: behind_key(site, sizes.rows(100_000) + sizes.supply),
                 lambda site, sizes: behind_key(site, sizes.supply), is_turns=True),
        Scenario("behind_limits", "50,000 behind one limit and 50,000 behind one rate, at an urgent priority",
                 beside(Kind(hold="'limit'", priority=-9, limit="'hot'"), 50_000,
                        Kind(hold="'rate'", priority=-9, rate="'hot'")), supply),
        Scenario("future", "300,000 future at an urgent priority",
                 beside(Kind(hold="'due'", priority=-9, due="n * interval '1 day'"), 300_000), supply),
        Scenario("runnable", "1 million runnable", beside(Kind(), 1_000_000), supply),
        Scenario("elsewhere", "1 million runnable in another queue, at an urgent priority",
                 beside(Kind(queue="other", priority=-9), 1_000_000), supply),
        Scenario("parked", "1 million parked", beside(Kind("awaiting_signal", awaits="'{paid}'"), 1_000_000), supply),
        Scenario("executing", "2,000 executing", executing, supply),
        Scenario("terminal", "5 million ended", beside(Kind("done"), 5_000_000), supply),
        Scenario("worked", "100,000 steps since the last vacuum", worked, supply),
        Scenario("held", "the same while a transaction is held open", worked_for, supply, None, holds=True),
    )
}  # fmt: skip
