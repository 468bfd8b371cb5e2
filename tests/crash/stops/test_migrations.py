"""A migration that is stopped between any two statements: the next one continues soon, and the schema is whole."""

from __future__ import annotations

import asyncio
import os
from time import monotonic

import pytest

from stepwell import Engine
from stepwell._store.migrate import latest_version
from stepwell._store.testing import databases
from stepwell.testing import Gap
from stepwell.testing.stops.explore import TIMES
from stepwell.testing.stops.processes import Forks, How, Process, Processes
from tests.crash.stops.known import transactions
from tests.crash.stops.machines import Leaf
from tests.support.shared_database import empty_database

MIGRATE = ("tests.crash.stops.test_migrations", "migrate")
APPLY = "stepwell._store.migrate.apply"
HELD = 10.0  # seconds that the next one waits for the locks of the one that was stopped
WORK = 5.0  # and for itself, on a free computer
AT_ONCE = 6
ALL = "STEPWELL_STOPS_ALL" in os.environ  # gaps, which takes some minutes: by make stops


async def migrate(engine: Engine) -> None:
    """What the stopped process does."""
    await engine.migrate()


async def passed(processes: Processes) -> list[Gap]:
    """The gaps of a migration of an empty database."""
    with empty_database() as url:
        process = await processes.start(url, act=MIGRATE)
        await process.ended.wait()
    assert process.code == 0, process.last_words()
    return [gap for gap in process.passed if gap.transaction == APPLY]


async def stopped(processes: Processes, url: str, gap: Gap, how: How) -> Process:
    process = await processes.start(url, act=MIGRATE, gap=gap, how=how)
    async with asyncio.timeout(30):
        await process.stopped.wait()
    return process


async def migrated_beside(processes: Processes, gap: Gap, how: How) -> None:
    """Stop one migration in the gap, and run another one; then continue the first."""
    with empty_database() as url:
        process = await stopped(processes, url, gap, how)
        began = monotonic()
        await Engine(url, machines=[Leaf], **TIMES).migrate()
        assert monotonic() - began < HELD + WORK * processes.computer.slowness(began)
        process.resume()
        async with asyncio.timeout(30):
            await process.ended.wait()
        [[version]] = await databases.query(url, "select version from stepwell.meta")
        assert (version, process.code) == (latest_version(), 0 if how == "halt" else -9), process.last_words()


@pytest.mark.parametrize("how", ["halt", "kill"])
async def test_a_migration_continues_beside_one_that_was_stopped(how: How) -> None:
    async with Forks() as forks:
        processes = Processes(forks, [Leaf], TIMES)
        gaps = await passed(processes)

        chosen = gaps if ALL else [gaps[1], gaps[len(gaps) // 2], gaps[-2]]
        for start in range(0, len(chosen), AT_ONCE):
            await asyncio.gather(*[migrated_beside(processes, gap, how) for gap in chosen[start : start + AT_ONCE]])

    assert transactions()[APPLY] <= {gap.after for gap in gaps}
