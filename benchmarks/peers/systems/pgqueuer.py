"""pgqueuer: a job queue; jobs are dequeued and finished in batches, and deleted when they are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import cycle

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.contract import CHAINED, System
from benchmarks.peers.timing import FAST_POLL, main

CHUNK = 5_000


class PgQueuerSystem(System):
    """pgqueuer over asyncpg."""

    packages = ("pgqueuer", "asyncpg", "uvloop")
    settings = (
        "asyncpg, a pool of {connections} connections for the worker (where it idles, one alone), {clients} for the "
        "client; `batch_size` {batch}, no limit of concurrency; durability as installed (all tables logged)"
    )
    knobs = {"batch": 1_000, "connections": 5, "clients": 10}  # noqa: RUF012 - the base class declares it
    notes = CHAINED | {
        "timer": "a delayed job; 10 ms at least between two looks (its `min_dequeue_poll_interval` is 100 ms)"
    }
    left = "select count(*) from pgqueuer"

    async def install(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self.connections = [await asyncpg.connect(self.url) for _ in range(int(self.knob["clients"]))]
        self.clients = cycle([Queries(AsyncpgDriver(connection)) for connection in self.connections])

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()

    @property
    def queries(self) -> Queries:
        """The next of the client's connections; a pool would reset them after every use."""
        return next(self.clients)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.worker() as worker:
            self.register(worker)
            if self.workload == "timer":
                worker.qm.min_dequeue_poll_interval = timedelta(seconds=FAST_POLL)
            running = asyncio.create_task(worker.run(batch_size=int(self.knob["batch"])))
            try:
                yield
            finally:
                worker.shutdown.set()
                await running

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[PgQueuer]:
        if self.is_idle:  # one connection is enough, and is not reset after every use like those of a pool
            connection = await asyncpg.connect(self.url)
            try:
                yield PgQueuer.from_asyncpg_connection(connection)
            finally:
                await connection.close()
        else:
            connections = int(self.knob["connections"])
            async with asyncpg.create_pool(self.url, min_size=connections, max_size=connections) as pool:
                yield PgQueuer.from_asyncpg_pool(pool)

    def register(self, worker: PgQueuer) -> None:
        @worker.entrypoint("once")
        async def once(job: Job) -> None:
            self.note(first_number(job))

        @worker.entrypoint("chain")
        async def chain(job: Job) -> None:
            self.note()
            left = first_number(job)
            if left > 1:
                await self.queries.enqueue("chain", self.payload(left - 1))

    def payload(self, number: int) -> bytes:
        return f"{number} {self.text}".encode()

    async def start(self, number: int) -> None:
        await self.queries.enqueue("once", self.payload(number))

    async def start_many(self, number: int) -> None:
        await self._enqueue("once", self.payload(-1), number)

    async def start_later(self, number: int, seconds: float) -> None:
        self.delay(number, seconds)
        await self.queries.enqueue("once", self.payload(number), execute_after=timedelta(seconds=seconds))

    async def start_chains(self, number: int, steps: int) -> None:
        await self._enqueue("chain", self.payload(steps), number)

    async def _enqueue(self, name: str, payload: bytes, number: int) -> None:
        for first in range(0, number, CHUNK):
            some = min(CHUNK, number - first)
            await self.queries.enqueue([name] * some, [payload] * some, [0] * some)


def first_number(job: Job) -> int:
    return int((job.payload or b"-1").partition(b" ")[0])


if __name__ == "__main__":
    main(PgQueuerSystem)
