"""Chancy: a job queue with workflows of jobs; outcomes are kept in the worker and written down together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module

from chancy import Chancy, Job, Queue, Worker, job
from chancy.plugins.leadership import ImmediateLeadership
from chancy.plugins.workflow import Workflow, WorkflowPlugin

from benchmarks.peers.contract import CHAINED, System
from benchmarks.peers.timing import TASKS, main

LOG = logging.getLogger("benchmark")
SYSTEMS: list[ChancySystem] = []  # the one of this process: a job is found by its import path, without arguments for it


@job()
async def once(*, number: int = -1, text: str = "") -> None:
    SYSTEMS[0].note(number)


@job()
async def chain(*, left: int, text: str) -> None:
    SYSTEMS[0].note()
    if left > 1:
        await SYSTEMS[0].chancy.push(chain.job.with_kwargs(left=left - 1, text=text))


@job()
async def join() -> None:
    """The end of a family."""


class ChancySystem(System):
    """Chancy over psycopg, jobs in its asyncio executor."""

    packages = ("chancy", "psycopg", "uvloop")
    settings = (
        "psycopg (binary), uvloop; asyncio executor, `concurrency` {concurrency}, eager polling, a pool of 10; "
        "outcomes are written every {flush} s (`send_outgoing_interval`, its default is 1 s); the default plugins "
        "(where there are workflows, with a leader at once)"
    )
    knobs = {"concurrency": 500, "flush": 0.1}  # noqa: RUF012 - the base class declares it
    scale = 0.5
    notes = CHAINED | {
        "timer": "a delayed job; it polls for those, at the shortest every second (its default is 5 s)",
        "families": "a workflow of 101 jobs, the last of which depends on all others; all are given at the start",
    }
    left = (
        "select (select count(*) from chancy_jobs where state <> 'succeeded')"
        " + (select count(*) from chancy_workflows where state <> 'completed')"
    )

    async def install(self) -> None:
        queue = Queue(
            "default", concurrency=int(self.knob["concurrency"]), executor=Chancy.Executor.Async, eager_polling=True,
            polling_interval=1 if self.workload == "timer" else 5,
        )  # fmt: skip
        async with self.connected() as chancy:
            await chancy.migrate()
            await chancy.declare(queue, upsert=True)

    async def open(self) -> None:
        SYSTEMS.append(self)
        self.chancy = await self.connected().__aenter__()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    def connected(self) -> Chancy:
        # A worker looks a minute after its start whether it leads, and workflows continue only where the leader is.
        plugins = [ImmediateLeadership()] if self.workload == "families" else []
        return Chancy(
            self.url, log=LOG, max_connection_pool_size=TASKS, min_connection_pool_size=TASKS, plugins=plugins
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.connected() as chancy:
            worker = Worker(chancy, register_signal_handlers=False)
            worker.send_outgoing_interval = self.knob["flush"]
            async with worker:
                yield

    async def start(self, number: int) -> None:
        await self.chancy.push(once.job.with_kwargs(number=number))

    async def start_many(self, number: int) -> None:
        await self._push([once.job.with_kwargs(text=self.text) if self.text else once.job] * number)

    async def start_later(self, number: int, seconds: float) -> None:
        self.delay(number, seconds)
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        await self.chancy.push(once.job.with_kwargs(number=number).with_scheduled_at(at))

    async def start_chains(self, number: int, steps: int) -> None:
        await self._push([chain.job.with_kwargs(left=steps, text=self.text)] * number)

    async def start_families(self, parents: int, children: int) -> None:
        names = [f"child-{number}" for number in range(children)]
        for _ in range(parents):
            workflow = Workflow("family").add_group([(name, once) for name in names]).add("join", join, names)
            await WorkflowPlugin.push(self.chancy, workflow)

    async def _push(self, jobs: list[Job]) -> None:
        async for _ in self.chancy.push_many(jobs):
            pass


if __name__ == "__main__":
    # Jobs are looked up in the module of their name, which is not this one while it is __main__.
    main(import_module("benchmarks.peers.systems.chancy").ChancySystem)
