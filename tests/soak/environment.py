"""The environment of a soak: one database, three nodes that start, stop and die, and a client that never does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from stepwell import Engine
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.testing import databases
from stepwell._worker.worker import Worker
from tests.soak.machines import MACHINES
from tests.support.shared_database import SharedHarness

T = TypeVar("T")

PATIENCE = 200
LEDGER = (Path(__file__).parent / "ledger.sql").read_text()
SETTINGS: dict[str, Any] = {
    "queues": {"default": 8}, "retention": False, "lease": timedelta(seconds=3), "heartbeat": timedelta(seconds=0.5),
    "reap": timedelta(seconds=0.3), "poll": timedelta(seconds=0.2), "max_poll": timedelta(seconds=0.5),
    "max_crashes": 1_000_000,
}  # fmt: skip
# A reaper may act at once, not only when its own lease has held for one lease.
STEADY = "update stepwell.workers set steady_since = '-infinity' where id = $1"
BURY = "update stepwell.workers set lease_until = '-infinity' where id = $1"


class Node:
    """One engine with one worker, as a process would have it."""

    def __init__(self, url: str, resources: asyncpg.Pool) -> None:
        self._url = url
        self._resources = resources
        self.engine: Engine
        self.worker: Worker
        self._database: Database

    async def start(self) -> None:
        self.engine = await Engine(self._url, machines=MACHINES, **SETTINGS).__aenter__()
        assert self.engine._notifier is not None
        self._database = Database(self._url, session=WORKER)
        await self._database.open()
        self.worker = Worker(
            database=self._database, registry=self.engine._registry, notifier=self.engine._notifier,
            emitter=self.engine._emitter, settings=self.engine.settings, resources=self._resources,
            dispatch_setup=self.engine._dispatch_setup,
        )  # fmt: skip
        await self.worker.start()
        await databases.query(self._url, STEADY, self.worker.id)

    async def stop(self) -> None:
        await self.worker.stop()
        await self._database.close()
        await self.engine.close()

    async def die(self) -> None:
        """End as a killed process would: no drain, no word to the database, statements cut in their middle."""
        worker, worker_id, graph = self.worker, self.worker.id, self.worker._graph
        worker._state.is_stopping = True
        for database in (self._database, graph.upkeep.heartbeat._database):
            if database.pool is not None:
                database.pool.terminate()
        services = graph.services()
        for service in services:
            service._stopping = True  # the driver may turn a cancellation into an error of its own
            service._stirred.set()
        tasks = [service._task for service in services if service._task is not None]
        for active in graph.active_claims.all():
            active.abandon("killed")
            if active.task is not None:
                tasks.append(active.task)
        for committer in (graph.committing.committer, graph.committing.spawner):
            tasks += committer.apart
        tasks += [*graph.starter._beginnings, *graph.recovery.renewals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await worker._subscriptions.aclose()
        await graph.upkeep.heartbeat.stop()
        self._database.pool = None
        await self.engine.close()
        if worker_id is not None:
            await databases.query(self._url, BURY, worker_id)


class Environment:
    """Everything asynchronous of a soak, in a thread of its own; `do` runs a coroutine there and waits for it."""

    def __init__(self, url: str) -> None:
        self._log = logging.getLogger("stepwell")
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL)  # dying workers complain, and they should
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="soak", daemon=True)
        self._thread.start()
        self.url = url
        self.harness = SharedHarness(url, MACHINES, **SETTINGS)
        self.resources: asyncpg.Pool
        self.nodes: dict[int, Node] = {}

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(PATIENCE)
        except TimeoutError:
            tasks = [f"{task.get_name()}: {task.get_stack()[-1:]}" for task in asyncio.all_tasks(self.loop)]
            raise AssertionError(f"no end within {PATIENCE} s; these tasks wait:\n" + "\n".join(tasks)) from None

    async def open(self) -> None:
        await self.harness.__aenter__()
        await databases._administer(self.url, "drop table if exists soak_log, soak_sections cascade")
        await databases._administer(self.url, "drop function if exists soak_note_signal, soak_note_instance cascade")
        await databases._administer(self.url, LEDGER)
        self.resources = await asyncpg.create_pool(self.url, min_size=1, max_size=8)

    def close(self) -> None:
        self.do(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
        self._log.setLevel(self._level)

    async def _close(self) -> None:
        for node in self.nodes.values():
            await node.die()
        self.nodes.clear()
        self.resources.terminate()
        await self.harness.__aexit__(None, None, None)

    async def start_node(self, number: int) -> None:
        if number not in self.nodes:
            node = Node(self.url, self.resources)
            await node.start()
            self.nodes[number] = node

    async def stop_node(self, number: int) -> None:
        if number in self.nodes:
            await self.nodes.pop(number).stop()

    async def kill_node(self, number: int) -> None:
        if number in self.nodes:
            await self.nodes.pop(number).die()

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        return list(await self.resources.fetch(statement, *args))
