"""One limit shared by several queues: who can not run blocks nobody who can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Machine, RateLimit, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

LIMITS = [ConcurrencyLimit("shared", 1), RateLimit("shared", 20, burst=1)]
BOTH = {"default": 5, "other": 5}


class Pass(Machine, initial="pass_through"):
    @step
    async def pass_through(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done()


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Pass], limits=LIMITS, resources=asyncio.Event())


async def in_line(h: Harness, queue: str, hold: str) -> int:
    sql = "select count(*) from stepwell.instances where queue = $1 and hold = $2"
    [(number,)] = await h.sql(sql, queue, hold)
    return int(number)


async def until_in_line(h: Harness, queue: str, hold: str, number: int) -> None:
    async def look() -> bool:
        return await in_line(h, queue, hold) >= number

    await eventually(look)


@pytest.mark.parametrize("way", ["paused", "unserved"])
async def test_a_line_of_a_queue_that_is_not_claimed_from_leaves_the_slots_to_the_others(h: Harness, way: str) -> None:
    async with h.engine.worker(queues=BOTH) as worker:
        await h.engine.start(Pass, {}, concurrency_limit="shared")
        await eventually(lambda: worker.running == 1)
        await h.engine.start_many([Pass.child({}, concurrency_limit="shared", queue="other", priority=-1)] * 20)
        behind = await h.engine.start_many([Pass.child({}, concurrency_limit="shared")] * 3)
        await until_in_line(h, "other", "limit", 20)
        await until_in_line(h, "default", "limit", 3)
        if way == "paused":
            await h.engine.queues.pause("other")
        else:
            await h.sql("update stepwell.workers set queues = '{\"default\": 5}'")
        h.resources.set()
        for one in behind:
            await one.result(20)  # type: ignore[union-attr]
        assert await in_line(h, "other", "limit") > 0


async def test_a_line_of_a_paused_queue_leaves_the_tokens_to_the_others(h: Harness) -> None:
    async with h.engine.worker(queues=BOTH):
        h.resources.set()
        await h.engine.start_many([Pass.child({}, rate_limit="shared", queue="other", priority=-1)] * 200)
        await until_in_line(h, "other", "rate", 100)
        await h.engine.queues.pause("other")
        started = await h.engine.start_many([Pass.child({}, rate_limit="shared")] * 3)

        for one in started:
            await one.result(20)  # type: ignore[union-attr]

        assert await in_line(h, "other", "rate") > 0
