"""What a workload works with: a fresh database, the sizes of this run, and an engine with its worker."""

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
from stepwell._cli import collector
from stepwell._runtime.tally import Tally
from stepwell._runtime.worker import Worker

QUEUES = {"default": 500}
LOOK_EVERY = 0.002  # seconds between two looks at a worker's tally: each costs the loop as much as a step


_COMMITTED: Any = vars(Tally)["committed"]  # the slot itself


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the workloads that can be run so."""

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
    """One repetition of one workload, on a database of its own."""

    url: str
    variant: Variant
    is_quick: bool

    def size(self, normal: int, quick: int) -> int:
        return quick if self.is_quick else normal

    @asynccontextmanager
    async def engine(self, resources: object = None, **settings: Any) -> AsyncIterator[Engine]:
        """An open engine; the database is migrated. The collector has as little to do as in `stepwell worker`."""
        collector.relieve()
        engine = Engine(self.url, machines=machines.ALL, resources=resources, **{"queues": QUEUES} | settings)
        await engine.migrate()
        async with engine:
            yield engine

    @asynccontextmanager
    async def working(self, resources: object = None, **settings: Any) -> AsyncIterator[tuple[Engine, Worker]]:
        """An open engine with a worker."""
        async with self.engine(resources, **settings) as engine, engine.worker() as worker:
            worker.tally.__class__ = TimedTally
            yield engine, worker

    async def settle(self) -> None:
        """Let the server write down what the preparation left, so that the measured part does not pay for it."""
        if not self.is_quick:
            await query(self.url, "vacuum analyze")
            await query(self.url, "checkpoint")

    async def expect_done(self, number: int) -> None:
        """A benchmark of something that does not work is worth nothing."""
        [row] = await query(self.url, "select count(*) as number from stepwell.instances where status = 'done'")
        if row["number"] != number:
            raise RuntimeError(f"{row['number']} instances are done, and not {number}")


class TimedTally(Tally):
    """Keeps the time of the last commit: a workload may be over in ten milliseconds, and to look that often whether it
    is would take a core from it."""

    __slots__ = ()
    last_commit = 0.0  # of the worker that is measured; there is one at a time

    @property
    def committed(self) -> int:
        return int(_COMMITTED.__get__(self))

    @committed.setter
    def committed(self, number: int) -> None:
        TimedTally.last_commit = perf_counter()
        _COMMITTED.__set__(self, number)


async def committed(worker: Worker, number: int) -> float:
    """Wait until a worker has committed so many steps since it started, and no more; returns when the last one was."""
    while worker.tally.committed < number:  # noqa: ASYNC110 - a tally is a count, nobody is told of it
        await asyncio.sleep(LOOK_EVERY)
    return TimedTally.last_commit


async def query(url: str, sql: str, arguments: Iterable[object] = ()) -> list[asyncpg.Record]:
    """One statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *arguments)
    finally:
        await connection.close()
