"""DBOS: functions with checkpointed steps; its queues poll."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from dbos import DBOS, DBOSClient, DBOSConfig, SendMessage

from benchmarks.peers.contract import System
from benchmarks.peers.timing import PARKED, TASKS, main

QUEUE = "benchmark"
WAITING = ("parked", "signal_latency", "timer")
PATIENCE = 300.0  # seconds that something parked waits at most


class Dbos(System):
    """DBOS over SQLAlchemy and psycopg."""

    packages = ("dbos", "SQLAlchemy", "psycopg")
    settings = (
        "psycopg (binary) under SQLAlchemy, a pool of {pool} connections; one queue with `worker_concurrency` "
        "{concurrency} (500 where they wait) and `polling_interval_sec` {poll} for the rates (its default is 1); "
        "workflows and steps are plain functions, in its threads; a DBOSClient starts them"
    )
    knobs = {"pool": 20, "concurrency": 100, "poll": 0.01}  # noqa: RUF012 - the base class declares it
    default_poll = 1.0
    scale = 0.1
    notes = {  # noqa: RUF012 - the same
        "start_many": "it has no bulk start: single enqueues in one transaction",
        "families": "children are started directly in the process, not through the queue",
        "parked": "one message each, by `send_bulk`",
        "signal_latency": "the worker is told of the message by the database, the client polls every 10 ms",
        "timer": "a durable sleep, which holds a thread of the worker",
    }
    left = "select count(*) from dbos.workflow_status where status <> 'SUCCESS'"

    async def install(self) -> None:
        await asyncio.to_thread(DBOS.migrate, self.url)

    async def open(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * TASKS))  # its client uses these
        self.client = await asyncio.to_thread(
            DBOSClient, system_database_url=self.url, system_database_pool_size=TASKS, application_name=QUEUE
        )
        await asyncio.to_thread(
            self.client.register_queue, QUEUE, polling_interval_sec=self.knob["poll"],
            worker_concurrency=PARKED if self.workload in WAITING else int(self.knob["concurrency"]),
        )  # fmt: skip
        self.waiting: list[str] = []
        self.register()

    async def close(self) -> None:
        await asyncio.to_thread(self.client.destroy)

    def register(self) -> None:
        @DBOS.step(name="step")
        def step() -> str | None:
            self.note()
            return self.text or None

        @DBOS.workflow(name="once")
        def once(number: int, text: str = "") -> None:
            self.note(number)

        @DBOS.workflow(name="chain")
        def chain(steps: int, text: str) -> None:
            for _ in range(steps):
                step()

        @DBOS.workflow(name="later")
        def later(number: int, seconds: float) -> None:
            self.delay(number, seconds)
            DBOS.sleep(seconds)
            self.note(number)

        @DBOS.workflow(name="family")
        def family(children: int) -> None:
            for child in [DBOS.start_workflow(once, -1) for _ in range(children)]:
                child.get_result()

        @DBOS.workflow(name="parked")
        def parked() -> None:
            self.waiting.append(str(DBOS.workflow_id))
            DBOS.recv("go", PATIENCE)
            self.note()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        config: DBOSConfig = {
            "name": QUEUE, "system_database_url": self.url, "sys_db_pool_size": int(self.knob["pool"]),
            "log_level": "ERROR", "executor_id": str(os.getpid()),
        }  # fmt: skip
        DBOS(config=config)
        await asyncio.to_thread(DBOS.launch)
        try:
            yield
        finally:
            await asyncio.to_thread(DBOS.destroy)

    async def start(self, number: int) -> None:
        await self.client.enqueue_async({"workflow_name": "once", "queue_name": QUEUE}, number)

    async def start_many(self, number: int) -> None:
        await self._enqueue("once", number, -1, *([self.text] if self.text else []))

    async def start_later(self, number: int, seconds: float) -> None:
        await self.client.enqueue_async({"workflow_name": "later", "queue_name": QUEUE}, number, seconds)

    async def start_chains(self, number: int, steps: int) -> None:
        await self._enqueue("chain", number, steps, self.text)

    async def start_families(self, parents: int, children: int) -> None:
        await self._enqueue("family", parents, children)

    async def park(self, number: int) -> None:
        await self._enqueue("parked", number)
        while len(self.waiting) < number:  # noqa: ASYNC110 - some append in threads: no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # the last have announced their wait, and start it now

    async def wake(self) -> None:
        await self.client.send_bulk_async([SendMessage(waiting, "go", "go") for waiting in self.waiting])

    async def signal(self, number: int) -> None:
        await self.client.send_async(self.waiting[number], "go", "go")

    async def ended(self, number: int) -> None:
        handle = await self.client.retrieve_workflow_async(self.waiting[number])
        await handle.get_result(polling_interval_sec=self.knob["poll"])

    async def _enqueue(self, name: str, number: int, *arguments: int | str) -> None:
        def enqueue_all() -> None:
            with self.client._sys_db.engine.begin() as connection:  # noqa: SLF001 - any engine on its database would do
                for _ in range(number):
                    self.client.enqueue_in_transaction(
                        connection, {"workflow_name": name, "queue_name": QUEUE}, *arguments
                    )

        await asyncio.to_thread(enqueue_all)


if __name__ == "__main__":
    main(Dbos)
