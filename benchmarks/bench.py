"""The environment of a workload: a fresh database, the sizes of this run, and an engine with its worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import asyncpg

from benchmarks import machines
from stepwell import Engine
from stepwell._cli import garbage_collector
from stepwell._process.stats import Stats
from stepwell._worker.worker import Worker

QUEUES = {"default": 500}
LOOK_EVERY = 0.002  # seconds between two reads of a worker's counters: each costs the loop as much as a step


_COMMITTED: Any = vars(Stats)["committed"]  # the slot itself


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the workloads that support it."""

    name: str
    state_bytes: int = 0
    processes: int = 0  # of `stepwell worker`; 0: the worker runs in this one

    @property
    def note(self) -> str:
        return "x" * self.state_bytes


PLAIN = Variant("")
LARGE = Variant("1 kB state", 1_000)
TWO_PROCESSES = Variant("`--processes 2`", processes=2)


@dataclass(frozen=True, slots=True)
class Bench:
    """One repetition of one workload, on its own database."""

    url: str
    variant: Variant
    is_quick: bool

    def size(self, normal: int, quick: int) -> int:
        return quick if self.is_quick else normal

    @asynccontextmanager
    async def engine(self, resources: object = None, **settings: Any) -> AsyncIterator[Engine]:
        """An open engine; the database is migrated. The garbage collector is set up as in `stepwell worker`."""
        garbage_collector.reduce_work()
        engine = Engine(self.url, machines=machines.ALL, resources=resources, **{"queues": QUEUES} | settings)
        await engine.migrate()
        async with engine:
            yield engine

    @asynccontextmanager
    async def working(self, resources: object = None, **settings: Any) -> AsyncIterator[tuple[Engine, Worker]]:
        """An open engine with a worker."""
        async with self.engine(resources, **settings) as engine, engine.worker() as worker:
            worker.stats.__class__ = TimedTally
            yield engine, worker

    async def settle(self) -> None:
        """Let the server write what the preparation left, so that the measured part does not pay for it."""
        if not self.is_quick:
            await query(self.url, "vacuum analyze")
            await query(self.url, "checkpoint")

    async def expect_done(self, number: int) -> None:
        """Check that the workload did its work."""
        [row] = await query(self.url, "select count(*) as number from stepwell.instances where status = 'done'")
        if row["number"] != number:
            raise RuntimeError(f"{row['number']} instances are done instead of {number}")


class TimedTally(Stats):
    """Keeps the time of the last commit: a workload may end within ten milliseconds, and to poll for its end that
    often would take a core from it.
    """

    __slots__ = ()
    last_commit = 0.0  # of the measured worker; there is one at a time

    @property
    def committed(self) -> int:
        return int(_COMMITTED.__get__(self))

    @committed.setter
    def committed(self, number: int) -> None:
        TimedTally.last_commit = perf_counter()
        _COMMITTED.__set__(self, number)


async def committed(worker: Worker, number: int) -> float:
    """Wait until a worker has committed exactly this many steps since it started; returns the time of the last
    commit.
    """
    while worker.stats.committed < number:  # noqa: ASYNC110 - a counter has no event to wait for
        await asyncio.sleep(LOOK_EVERY)
    return TimedTally.last_commit


async def query(url: str, sql: str, arguments: Iterable[object] = ()) -> list[asyncpg.Record]:
    """One statement on its own connection."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *arguments)
    finally:
        await connection.close()
