"""A worker with an expired lease continues until another worker reaps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._worker.upkeep.heartbeat import Beats
from stepwell.testing import Harness
from tests.conftest import MakeHarness

LAPSE = "update stepwell.workers set lease_until = pg_catalog.now() - interval '1 second'"


class Long(Machine):
    """Runs until the test lets it end."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun.set()
        await ctx.resources.end.wait()
        return Done(ctx.attempt)


class Short(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(ctx.attempt)


class Signs:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.end = asyncio.Event()


@pytest.fixture
async def h(make_harness: MakeHarness) -> AsyncIterator[Harness]:
    return await make_harness([Long, Short], resources=Signs(), heartbeat=timedelta(seconds=1))


async def test_a_worker_keeps_its_steps_after_its_lease_ran_out_in_an_outage(h: Harness) -> None:
    """Scenario 140."""
    signs = h.engine._resources
    long = await h.engine.start(Long)
    async with h.engine.worker() as worker:
        await signs.begun.wait()
        entered = worker.id

        await h.sql(LAPSE)
        short = await h.engine.start(Short)
        assert await short.result(timeout=20) == 0
        signs.end.set()

        assert await long.result(timeout=20) == 0
        assert worker.id == entered
        assert worker.stats.leases_lost == 0


async def test_a_heartbeat_tries_again_within_a_beat_however_long_the_outage() -> None:
    names = ("database", "lease", "active_claims", "pulse", "main", "wakeups", "retirement")
    others: Any = dict.fromkeys(names)
    beats = Beats(every=timedelta(seconds=0.2), **others)

    pauses = [beats._back_off() for _ in range(20)]

    assert max(pauses) <= 0.2  # else the first worker to reconnect would expire the others while they rest
