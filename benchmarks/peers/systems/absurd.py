"""Absurd: tasks with checkpointed steps, done by stored procedures; its worker polls.

Its schema comes from PyPI too: the package `absurdctl` contains it, for its command `absurdctl init`. That command
needs `psql`; the same text is run here through the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.contract import System
from benchmarks.peers.timing import TASKS, main

QUEUES = ("default", "children")


class Absurd(System):
    """Absurd over psycopg, all async."""

    packages = ("absurd-sdk", "absurdctl", "psycopg", "uvloop")
    settings = (
        "psycopg (binary), async client, uvloop; {workers} workers in the process (one where it idles), each with its "
        "own connection and `concurrency` {concurrency}; `poll_interval` {poll} s for the rates (its default is 0.25 s)"
    )
    knobs = {"workers": 4, "concurrency": 100, "poll": 0.05}  # noqa: RUF012 - the base class declares it
    default_poll = 0.25
    scale = 0.3
    notes = {  # noqa: RUF012 - the same
        "start_many": "it has no bulk start: single spawns in one transaction",
        "families": "a parent holds its place in the worker and polls for each child, which must be in another queue",
        "parked": "one event each, emitted one by one from 10 tasks",
        "signal_latency": "worker and client poll every 10 ms",
        "timer": "a durable sleep; the worker polls every 10 ms",
    }
    left = (
        "select (select count(*) from absurd.t_default where state <> 'completed')"
        " + (select count(*) from absurd.t_children where state <> 'completed')"
    )

    async def install(self) -> None:
        async with await self.connect() as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
            for queue in QUEUES:
                await AsyncAbsurd(connection).create_queue(queue)

    async def open(self) -> None:
        self.connections = [await self.connect() for _ in range(TASKS)]
        self.clients = cycle([AsyncAbsurd(connection) for connection in self.connections])

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            workers = [
                self.worker(await stack.enter_async_context(await self.connect()), queue)
                for queue in (QUEUES if self.workload == "families" else QUEUES[:1])
                for _ in range(1 if self.is_idle else int(self.knob["workers"]))
            ]
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(self.run(worker))
                yield
                for worker in workers:
                    worker.stop_worker()

    async def run(self, worker: AsyncAbsurd) -> None:
        await worker.start_worker(concurrency=int(self.knob["concurrency"]), poll_interval=self.knob["poll"])

    def worker(self, connection: psycopg.AsyncConnection[Any], queue: str) -> AsyncAbsurd:
        app = AsyncAbsurd(connection, queue_name=queue)

        @app.register_task("once" if queue == "default" else "child")
        async def once(params: Any, _: AsyncTaskContext) -> None:
            self.note(params["number"])

        @app.register_task("chain")
        async def chain(params: Any, ctx: AsyncTaskContext) -> None:
            for number in range(params["steps"]):
                await ctx.step(f"step {number}", self.step)

        @app.register_task("later")
        async def later(params: Any, ctx: AsyncTaskContext) -> None:
            self.delay(params["number"], params["seconds"])
            await ctx.sleep_for("sleep", params["seconds"])
            self.note(params["number"])

        @app.register_task("family")
        async def family(params: Any, ctx: AsyncTaskContext) -> None:
            async def spawn() -> list[str]:
                some = [await app.spawn("child", {"number": -1}, queue="children") for _ in range(params["children"])]
                return [str(child["task_id"]) for child in some]

            for child in await ctx.step("spawn", spawn):
                await ctx.await_task_result(child, queue_name="children")

        @app.register_task("parked")
        async def parked(params: Any, ctx: AsyncTaskContext) -> None:
            await ctx.await_event(f"go-{params['number']}")
            self.note()

        return app

    async def step(self) -> str | None:
        self.note()
        return self.text or None

    async def start(self, number: int) -> None:
        await next(self.clients).spawn("once", {"number": number}, queue="default")

    async def start_many(self, number: int) -> None:
        await self._spawn("once", {"number": -1, "text": self.text}, number)

    async def start_later(self, number: int, seconds: float) -> None:
        await next(self.clients).spawn("later", {"number": number, "seconds": seconds}, queue="default")

    async def start_chains(self, number: int, steps: int) -> None:
        await self._spawn("chain", {"steps": steps, "text": self.text}, number)

    async def start_families(self, parents: int, children: int) -> None:
        await self._spawn("family", {"children": children}, parents)

    async def park(self, number: int) -> None:
        spawned = [await next(self.clients).spawn("parked", {"number": n}, queue="default") for n in range(number)]
        self.waiting = [str(each["task_id"]) for each in spawned]
        unparked = "select count(*) from absurd.t_default where task_name = 'parked' and state <> 'sleeping'"
        await self.until_none(unparked)

    async def wake(self) -> None:
        async def emit_some(first: int) -> None:
            client = AsyncAbsurd(self.connections[first])
            for number in range(first, len(self.waiting), TASKS):
                await client.emit_event(f"go-{number}")

        await asyncio.gather(*(emit_some(first) for first in range(TASKS)))

    async def signal(self, number: int) -> None:
        await next(self.clients).emit_event(f"go-{number}")

    async def ended(self, number: int) -> None:
        """By its query for a result; its own wait for one polls after 50 ms, and then ever more seldom."""
        client = next(self.clients)
        while True:
            found = await client.fetch_task_result(self.waiting[number])
            if found is not None and found.state == "completed":
                return
            await asyncio.sleep(self.knob["poll"])

    async def _spawn(self, task: str, params: Any, number: int) -> None:
        client = AsyncAbsurd(self.connections[0])
        async with self.connections[0].transaction():
            for _ in range(number):
                await client.spawn(task, params, queue="default")


if __name__ == "__main__":
    main(Absurd)
