"""A real server with a clock that libfaketime moves, and worker processes that live and die meanwhile."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepwell import Engine
from stepwell.embedded.account import Account
from stepwell.testing import Harness
from tests.chaos.clock import Clock
from tests.chaos.servers import Server, find_programs
from tests.crash.conftest import StartWorker, effects
from tests.support.crash_app import CREATE_EFFECTS, MACHINES, Endless
from tests.support.shared_database import SharedHarness
from tests.support.waiting import eventually

LEASE = {"lease": 1.2, "heartbeat": 0.4}
HOUR = 3600


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user may enter."""
    made = Path(tempfile.gettempdir()) / f"stepwell-clock-{secrets.token_hex(4)}"
    made.mkdir()
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def clock(folder: Path) -> Clock:
    return Clock(folder)


@pytest.fixture
async def h(clock: Clock, folder: Path) -> AsyncIterator[Harness]:
    """A harness on a server of its own with that clock: PostgreSQL 15 where the tests run on it."""
    account = Account.of_the_server()
    programs = find_programs("15" if os.environ.get("STEPWELL_TEST_DATABASE_URL") else "18", account)
    server = Server(programs, folder / "server", account, clock.environment)
    server.prepare()
    server.init()
    try:
        await asyncio.to_thread(server.start)
        if why := await clock.problem(server):
            pytest.skip(why)
        await Engine(server.url()).migrate()
        async with SharedHarness(server.url(), MACHINES) as harness:
            await harness.sql(CREATE_EFFECTS)
            yield harness
    finally:
        await asyncio.to_thread(server.stop)


async def test_the_rows_of_a_worker_that_dies_while_the_clock_goes_back_run_again(
    h: Harness, clock: Clock, start_worker: StartWorker
) -> None:
    endless = await h.engine.start(Endless)
    dying = await start_worker(h.url, **LEASE)
    await dying.ready()
    await eventually(lambda: has_run(h, endless.id, dying.pid))
    survivor = await start_worker(h.url, **LEASE, reap=0.2)
    await survivor.ready()
    clock.move(HOUR)
    await eventually(lambda: has_beaten_since(h, datetime.now(UTC) + timedelta(minutes=30)))

    await dying.kill()
    clock.move(0)

    await eventually(lambda: has_run(h, endless.id, survivor.pid))


async def has_run(h: Harness, instance: int, pid: int) -> bool:
    return pid in {run[3] for run in await effects(h, instance)}


async def has_beaten_since(h: Harness, since: datetime) -> bool:
    """Whether every worker has."""
    [row] = await h.sql("select bool_and(beat_at > $1) as have from stepwell.workers", since)
    return bool(row["have"])
