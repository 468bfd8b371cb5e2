"""One limit shared by several queues: rows that cannot run block no row that can."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Handle, Machine, RateLimit, Status, step
from stepwell._store import concurrency_keys
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

LIMITS = [
    ConcurrencyLimit("shared", 1),
    RateLimit("shared", 20, burst=1),
    RateLimit("daily", 1, per=timedelta(days=1), burst=2),
]
BOTH = {"default": 5, "other": 5}


class Pass(Machine, initial="pass_through"):
    @step
    async def pass_through(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done()


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Pass], limits=LIMITS, resources=asyncio.Event())


async def number_waiting(h: Harness, queue: str, hold: str) -> int:
    sql = "select count(*) from stepwell.instances where queue = $1 and hold = $2"
    [(number,)] = await h.sql(sql, queue, hold)
    return int(number)


async def until_waiting(h: Harness, queue: str, hold: str, number: int) -> None:
    async def look() -> bool:
        return await number_waiting(h, queue, hold) >= number

    await eventually(look)


async def until_executing(h: Harness, number: int) -> None:
    sql = "select from stepwell.instances where status = 'executing' having count(*) = $1"
    await eventually(lambda: h.sql(sql, number))


async def is_executing(handle: Handle) -> bool:
    return (await handle.get()).status is Status.EXECUTING


async def until_live(h: Harness, number: int) -> None:
    """Wait until all but this many have ended."""
    sql = "select from stepwell.instances where finished_at is null having count(*) = $1"
    await eventually(lambda: h.sql(sql, number))


@pytest.mark.parametrize("way", ["paused", "unserved"])
async def test_rows_of_an_unclaimed_queue_leave_the_slots_to_other_queues(h: Harness, way: str) -> None:
    async with h.engine.worker(queues=BOTH) as worker:
        await h.engine.start(Pass, {}, concurrency_limit="shared")
        await eventually(lambda: worker.running == 1)
        await h.engine.start_many([Pass.child({}, concurrency_limit="shared", queue="other", priority=-1)] * 20)
        behind = await h.engine.start_many([Pass.child({}, concurrency_limit="shared")] * 3)
        await until_waiting(h, "other", "limit", 20)
        await until_waiting(h, "default", "limit", 3)
        if way == "paused":
            await h.engine.queues.pause("other")
        else:
            await h.sql("update stepwell.workers set queues = '{\"default\": 5}'")
        h.resources.set()
        for one in behind:
            await one.result(20)  # type: ignore[union-attr]
        assert await number_waiting(h, "other", "limit") > 0


@pytest.mark.parametrize(("ahead", "go"), [(0, ["y"]), (100, ["x", "y"])])
async def test_a_queue_with_busy_workers_keeps_no_slot_from_another(
    make_harness: MakeHarness, ahead: int, go: list[str]
) -> None:
    h = await make_harness([Pass], limits=LIMITS, resources=asyncio.Event(), reap=timedelta(hours=1))
    async with AsyncExitStack() as stack:
        with armed("reaper.ticked") as ticked:
            await stack.enter_async_context(h.engine.worker(queues={"x": 1}))
            elsewhere = await stack.enter_async_context(h.another_engine())
            await stack.enter_async_context(elsewhere.worker(queues={"y": 2}))
            await ticked.reached(2)  # from now on no reaper frees a slot before the test does
        holder = await h.engine.start(Pass, {}, concurrency_limit="shared", queue="y")
        await until_executing(h, 1)
        await h.engine.start_many([Pass.child({}, concurrency_limit="shared", queue="x")] * 5)
        behind = await h.engine.start(Pass, {}, concurrency_limit="shared", queue="y")
        await until_waiting(h, "x", "limit", 5)
        await until_waiting(h, "y", "limit", 1)
        await h.engine.start_many([Pass.child({}, queue="x", priority=-1)] * (1 + ahead))
        await until_executing(h, 2)
        await h.engine.cancel(holder.id)
        assert await number_waiting(h, "x", "limit") == 4  # one is admitted, and no worker has a slot for it

        assert sorted(await concurrency_keys.free_idle(h.engine._database)) == go

        await eventually(lambda: is_executing(behind))
        h.resources.set()


async def test_the_reaper_admits_no_more_of_a_queue_than_there_is_room_for(h: Harness) -> None:
    await h.engine.migrate()
    await h.engine.start_many([Pass.child({}, concurrency_limit="shared")] * 5)
    await h.sql("update stepwell.instances set hold = 'limit'")

    looks = [await concurrency_keys.free_idle(h.engine._database) for _ in range(3)]

    assert looks == [["default"], [], []]
    assert await number_waiting(h, "default", "limit") == 4


async def test_rows_of_a_paused_queue_leave_the_tokens_to_others_until_resumed(
    h: Harness,
) -> None:
    async with h.engine.worker(queues=BOTH):
        h.resources.set()
        await h.engine.start_many([Pass.child({}, rate_limit="shared", queue="other", priority=-1)] * 80)
        await until_waiting(h, "other", "rate", 50)
        await h.engine.queues.pause("other")
        started = await h.engine.start_many([Pass.child({}, rate_limit="shared")] * 3)

        for one in started:
            await one.result(20)  # type: ignore[union-attr]

        assert await number_waiting(h, "other", "rate") > 0
        await h.engine.queues.resume("other")
        await until_live(h, 0)


@pytest.mark.parametrize("way", ["paused", "unserved"])
async def test_a_worker_that_takes_the_tokens_leaves_no_waiter_of_another_queue(h: Harness, way: str) -> None:
    h.resources.set()
    async with h.engine.worker(queues={"default": 5}), h.another_engine() as elsewhere:
        async with elsewhere.worker(queues={"other": 5}):
            await h.engine.start_many([Pass.child({}, rate_limit="daily", queue="other", priority=-1)] * 4)
            await until_live(h, 2)
            await until_waiting(h, "other", "rate", 2)
            if way == "paused":
                await h.engine.queues.pause("other")
        newcomer = await h.engine.start(Pass, {}, rate_limit="daily")
        await until_waiting(h, "default", "rate", 1)
        await h.advance(timedelta(days=1))
        await newcomer.result(20)
        assert await number_waiting(h, "other", "rate") == 2
        assert await h.sql("select from stepwell.buckets where next_at is not null")

        await h.engine.queues.resume("other")
        async with elsewhere.worker(queues={"other": 5}):
            await h.advance(timedelta(days=2))
            await until_live(h, 0)


async def test_a_resumed_queue_has_its_position_in_the_wait_queue_at_once(h: Harness) -> None:
    h.resources.set()
    async with h.engine.worker(queues=BOTH):
        await (await h.engine.start(Pass, {}, rate_limit="daily", weight=2)).result(20)
        light = await h.engine.start(Pass, {}, rate_limit="daily", queue="other", priority=-1)
        await until_waiting(h, "other", "rate", 1)
        await h.engine.start(Pass, {}, rate_limit="daily", weight=2)
        await until_waiting(h, "default", "rate", 1)
        await h.engine.queues.pause("other")
        await h.advance(timedelta(days=1))  # there is a token, and a row that needs two waits for another day
        await eventually(lambda: h.sql("select from stepwell.buckets where next_at > stepwell.now() + '1 hour'"))

        await h.engine.queues.resume("other")

        await light.result(20)
