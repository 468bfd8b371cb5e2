"""Procrastinate: a job queue; every job is fetched and finished by its own statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from procrastinate import App, PsycopgConnector

from benchmarks.peers.contract import CHAINED, System
from benchmarks.peers.timing import FAST_POLL, TASKS, main

CHUNK = 1_000
DEFAULT_POLL = 5.0  # seconds; for work without a notification


class Procrastinate(System):
    """Procrastinate over psycopg."""

    packages = ("procrastinate", "psycopg", "uvloop")
    settings = (
        "psycopg (binary), uvloop; {workers} workers in the process (one where it idles) with `concurrency` "
        "{concurrency} each, a pool of {pool} connections; notices on; done jobs stay in the table, as by default"
    )
    knobs = {"workers": 8, "concurrency": 10, "pool": 20}  # noqa: RUF012 - the base class declares it
    scale = 0.2
    notes = CHAINED | {"timer": "a delayed job; it polls for those, here every 10 ms (its default is 5 s)"}
    left = "select count(*) from procrastinate_jobs where status <> 'succeeded'"

    async def install(self) -> None:
        async with self.app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self.client = self.app(TASKS)
        await self.client.open_async()

    async def close(self) -> None:
        await self.client.close_async()

    def app(self, connections: int) -> App:
        app = App(connector=PsycopgConnector(conninfo=self.url, min_size=connections, max_size=connections))

        @app.task(name="once")
        async def once(number: int, text: str = "") -> None:
            self.note(number)

        @app.task(name="chain")
        async def chain(left: int, text: str) -> None:
            self.note()
            if left > 1:
                await chain.defer_async(left=left - 1, text=text)

        self.once, self.chain = app.tasks["once"], app.tasks["chain"]
        return app

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        once, chain = self.once, self.chain
        app = self.app(int(self.knob["pool"]))
        self.once, self.chain = once, chain  # the client keeps its own
        poll = FAST_POLL if self.workload == "timer" else DEFAULT_POLL
        async with app.open_async():
            workers = [
                asyncio.create_task(
                    app.run_worker_async(
                        concurrency=int(self.knob["concurrency"]),
                        fetch_job_polling_interval=poll,
                        install_signal_handlers=False,
                    )
                )
                for _ in range(1 if self.is_idle else int(self.knob["workers"]))
            ]
            try:
                yield
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def start(self, number: int) -> None:
        await self.once.defer_async(number=number)

    async def start_many(self, number: int) -> None:
        for first in range(0, number, CHUNK):
            await self.once.batch_defer_async(*[{"number": -1, "text": self.text}] * min(CHUNK, number - first))

    async def start_later(self, number: int, seconds: float) -> None:
        self.delay(number, seconds)
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        await self.once.configure(schedule_at=at).defer_async(number=number)

    async def start_chains(self, number: int, steps: int) -> None:
        await self.chain.batch_defer_async(*[{"left": steps, "text": self.text}] * number)


if __name__ == "__main__":
    main(Procrastinate)
