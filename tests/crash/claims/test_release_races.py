"""Releasing claims, against transactions that lock their rows for a moment."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from stepwell import Context, Done, Machine, step
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Held(Machine):
    """Runs until its gate is open."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done()


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def h(make_harness: MakeHarness, gate: asyncio.Event) -> Harness:
    return await make_harness([Held], resources=gate, prefetch=1)


async def states(h: Harness) -> list[tuple[str, bool]]:
    rows = await h.sql("select status, worker_id is not null as is_held from stepwell.instances order by id")
    return [tuple(row) for row in rows]


async def test_a_claim_on_a_locked_row_is_released_once_the_row_is_free(
    h: Harness, gate: asyncio.Event
) -> None:
    """And not at the second beat after that, 40 seconds later."""
    async with h.engine.worker({"default": 1}):
        await h.engine.start_many([Held] * 2)
        await eventually(lambda: in_hand(h, 2))
        foreign = await asyncpg.connect(h.url)
        async with foreign.transaction():
            await foreign.execute("select from stepwell.instances order by id for no key update")
            await h.engine.queues.pause("default")
            await eventually(lambda: has_tried(h))
            assert await states(h) == [("executing", True)] * 2

        await eventually(lambda: in_hand(h, 1), patience=10)
        gate.set()
        await foreign.close()


async def in_hand(h: Harness, number: int) -> bool:
    return [status for status, _ in await states(h)].count("executing") == number


async def has_tried(h: Harness) -> bool:
    """Whether a worker has checked what became of its released claims."""
    asked = "select query from pg_stat_activity where datname = current_database()"
    return statement("instances/verify") in {row["query"] for row in await h.sql(asked)}
