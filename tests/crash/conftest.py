"""What the crash tests share: a database with an `effects` table, and worker processes that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support import contest as contests
from tests.support.contest import Contest
from tests.support.crash_app import CREATE_EFFECTS, MACHINES
from tests.support.processes import WorkerProcess, worker_processes
from tests.support.race import Plain, Race

StartWorker = Callable[..., Awaitable[WorkerProcess]]


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    """Start a worker process: `worker = await start_worker(h.url, crash=point, **settings)`."""
    async with worker_processes() as started:
        yield started.start


@pytest.fixture
async def race(make_harness: MakeHarness) -> AsyncIterator[Race]:
    """A database with sessions that the test drives itself."""
    harness = await make_harness([Plain])
    async with AsyncExitStack() as stack:
        yield Race(harness, stack)


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    """A database with the machines of `crash_app` and their table of effects."""
    harness = await make_harness(MACHINES)
    await harness.sql(CREATE_EFFECTS)
    return harness


@pytest.fixture
async def contest() -> AsyncIterator[Contest]:
    """Two or more connections on one database: `one, other = await contest.join()`."""
    async with Harness([contests.Plain]) as harness, Contest.on(harness) as contest:
        yield contest


async def effects(h: Harness, instance: int) -> list[tuple[Any, ...]]:
    """(step, attempt, crashes, pid, note) of every run, in order of time."""
    rows = await h.sql(
        "select step, attempt, crashes, pid, note from effects where instance = $1 order by number", instance
    )
    return [tuple(row) for row in rows]


async def is_all_over(h: Harness) -> bool:
    """Whether every instance has ended."""
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def is_executing(h: Harness) -> bool:
    """Whether any row is still claimed by a worker."""
    return bool(await h.sql("select from stepwell.instances where status = 'executing'"))


async def worker_ids(h: Harness, pid: int) -> list[int]:
    """The ids of the workers that a process has registered."""
    return [row["id"] for row in await h.sql("select id from stepwell.workers where pid = $1 order by started_at", pid)]
