"""Rate limits, as an author sees them; time is the test's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Event, Hold, Machine, Next, RateLimit, Retry, Status, step
from stepwell._store.connection.sql_files import statement
from stepwell._store.testing import databases
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

CENTURY = timedelta(days=36_500)
LIMITS = [
    RateLimit("once", 1, per=CENTURY, burst=5),
    RateLimit("minute", 60, per=timedelta(hours=1), burst=2),
    RateLimit("fast", 50, burst=1),
    ConcurrencyLimit("minute", 1),
]


class Call(Machine, initial="call"):
    @step
    async def call(self, ctx: Context[Any]) -> Any:
        ctx.resources.append(ctx.id)
        match (ctx.state or {}).get("then"):
            case "retry" if ctx.attempt < 2:
                return Retry()
            case "next":
                return Next(self.end)
            case "next limited":
                return Next(self.end, rate_limit="once", weight=2)
        return Done()

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


class Declared(Machine, initial="first"):
    @step(rate_limit=("once", "declared"), weight=3)
    async def first(self, ctx: Context[None]) -> Next:
        return Next(self.second)

    @step
    async def second(self, ctx: Context[None]) -> Done:
        return Done()


class Watch(Machine, initial="watch"):
    @step
    async def watch(self, ctx: Context[Any]) -> Done:
        return Done(await ctx.resources["tokens"]())

    @step
    async def stay(self, ctx: Context[Any]) -> Done:
        await ctx.resources["gate"].wait()
        return Done()


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Call, Declared], limits=LIMITS, resources=[])


async def tokens(h: Harness, key: str) -> float:
    [row] = await h.sql("select tokens from stepwell.buckets where key = $1", key)
    return float(row["tokens"])


async def test_rule_23_a_bucket_gives_its_burst_and_no_token_more(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="once")] * 10)

    tally = await h.drain(concurrency=10)

    assert tally.ended[Status.DONE] == 5
    assert await tokens(h, "once") < 0.001
    [(held,)] = await h.sql("select count(*) from stepwell.instances where hold = 'rate'")
    assert held == 5


async def test_tokens_accrue_with_time_up_to_the_burst(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="minute")] * 9)

    ran = []
    for minutes in (0, 1, 3, 60):
        await h.advance(timedelta(minutes=minutes))
        ran.append((await h.drain(concurrency=10)).ended[Status.DONE])

    assert ran == [2, 1, 2, 2]


async def test_a_drain_with_scheduled_moves_the_clock_to_the_next_token(h: Harness) -> None:
    began = h.now()
    started = await h.engine.start_many([Call.child({}, rate_limit="minute")] * 12)

    await h.drain(with_scheduled=True)

    assert h.resources == [one.id for one in started]
    assert timedelta(minutes=9.5) < h.now() - began < timedelta(minutes=15)


async def test_light_rows_wait_behind_a_heavy_head_that_waits_for_tokens(h: Harness) -> None:
    first = await h.engine.start(Call, rate_limit="minute")
    heavy = await h.engine.start(Call, rate_limit="minute", weight=2)
    light = await h.engine.start(Call, rate_limit="minute")

    await h.drain(concurrency=5)
    assert h.resources == [first.id]
    waiting = await light.get()
    await h.drain(with_scheduled=True)

    assert h.resources == [first.id, heavy.id, light.id]
    assert (waiting.hold, waiting.waiting_for) == (Hold.RATE, "its turn by rate limit 'minute'")


async def test_the_more_urgent_row_takes_tokens_first(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="minute")] * 3)
    await h.drain(concurrency=5)
    urgent = await h.engine.start(Call, rate_limit="minute", priority=-1)

    await h.drain(with_scheduled=True)

    assert h.resources[2] == urgent.id


async def test_each_part_has_its_own_bucket(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit=("minute", n % 3)) for n in range(12)])

    tally = await h.drain(concurrency=12)

    assert tally.ended[Status.DONE] == 6


async def test_each_attempt_takes_tokens_and_keeps_its_limit(h: Harness) -> None:
    one = await h.engine.start(Call, {"then": "retry"}, rate_limit="once", weight=2)

    await h.drain()
    waiting = await one.get()

    assert (waiting.attempt, waiting.hold, waiting.rate_limit, waiting.weight) == (2, Hold.RATE, "once", 2)
    assert 0.9 < await tokens(h, "once") < 1.1


@pytest.mark.parametrize(("then", "left"), [("next", 4), ("next limited", 2)])
async def test_the_next_step_needs_what_next_says_and_nothing_else(h: Harness, then: str, left: int) -> None:
    one = await h.engine.start(Call, {"then": then}, rate_limit="once")

    await h.drain()

    await h.assert_done(one)
    assert round(await tokens(h, "once")) == left


async def test_a_rate_of_a_step_does_not_apply_to_the_next_step(h: Harness) -> None:
    one, two = await h.engine.start(Declared), await h.engine.start(Declared)

    await h.drain()

    await h.assert_done(one)
    assert (await two.get()).hold is Hold.RATE
    assert round(await tokens(h, "once:declared")) == 2


async def test_a_slot_refused_for_lack_of_tokens_passes_to_the_next_waiter(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="once")] * 5)
    await h.drain(concurrency=5)
    for n in range(3):
        await h.engine.start(Call, concurrency_limit="minute", rate_limit="once" if n else None, priority=n)
    free = await h.engine.start(Call, concurrency_limit="minute", priority=9)

    await h.drain(concurrency=10)

    await h.assert_done(free)
    [(held,)] = await h.sql("select count(*) from stepwell.instances where hold = 'rate'")
    assert held == 2


async def test_full_buckets_are_deleted_and_a_missing_one_is_full(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit=("minute", n)) for n in range(3)])
    await h.engine.start_many([Call.child({}, rate_limit="once")] * 6)
    await h.drain(concurrency=10)
    await h.advance(timedelta(hours=1))

    async with h.engine.worker():
        await eventually(lambda: _only_once_is_left(h))

    await h.engine.start_many([Call.child({}, rate_limit=("minute", 1))] * 3)
    assert (await h.drain(concurrency=10)).ended[Status.DONE] == 2


async def test_a_token_is_taken_only_when_a_slot_is_free_to_start(
    make_harness: MakeHarness,
) -> None:
    resources: dict[str, Any] = {"gate": asyncio.Event(), "tokens": lambda: tokens(h, "once")}
    h = await make_harness([Watch], limits=LIMITS, resources=resources)
    entries = [*[Watch.child({}, rate_limit="once")] * 4, Watch.child({}, step="stay")]

    async with h.engine.worker({"default": 1}, prefetch=9):
        await h.engine.start(Watch, {}, step="stay")
        await eventually(lambda: h.sql("select from stepwell.instances where status = 'executing'"))
        *limited, _ = await h.engine.start_many(entries)
        await eventually(lambda: h.sql("select from stepwell.instances having count(worker_id) > 1"))
        resources["gate"].set()
        left = [await one.result(20) for one in limited]  # type: ignore[union-attr]

    assert [round(number) for number in left] == [4, 3, 2, 1]


async def test_gaps_18_and_19_a_bucket_with_waiters_is_not_deleted(h: Harness) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="once")] * 6)
    await h.drain()
    await h.sql("update stepwell.buckets set tokens = 5, next_at = null")

    await h.sql(statement("limits/prune"), "", 100)

    assert await h.sql("select from stepwell.buckets where key = 'once'")


@pytest.mark.parametrize("lost", ["update stepwell.buckets set next_at = null", "delete from stepwell.buckets"])
async def test_gaps_18_and_19_a_forgotten_wait_queue_is_found_by_the_reaper(h: Harness, lost: str) -> None:
    await h.engine.start_many([Call.child({}, rate_limit="minute")] * 4)
    await h.drain()
    await h.sql(lost)
    await h.advance(timedelta(minutes=2))

    async with h.engine.worker():
        await eventually(lambda: _are_done(h, 4))


async def _only_once_is_left(h: Harness) -> bool:
    return [row["key"] for row in await h.sql("select key from stepwell.buckets")] == ["once"]


async def _are_done(h: Harness, number: int) -> bool:
    [(done,)] = await h.sql("select count(*) from stepwell.instances where status = 'done'")
    return bool(done == number)


async def test_a_worker_admits_waiters_in_real_time_and_reports_those_that_wait(h: Harness) -> None:
    waits: list[Event] = []
    h.engine.on("limit_wait", waits.append)
    started = await h.engine.start_many([Call.child({}, rate_limit="fast")] * 10)

    async with h.engine.worker():
        await eventually(lambda: _are_done(h, 10))  # no worker waits for one of them: that would lock it for a moment

    assert h.resources == [one.id for one in started]
    assert {event.id for event in waits} == {one.id for one in started[1:]}
    assert (waits[0].machine, waits[0].step, waits[0].status) == ("Call", "call", Status.RUNNABLE)


async def test_a_wait_queue_advances_after_the_database_clock_went_back_an_hour(make_harness: MakeHarness) -> None:
    h = await make_harness([Call], limits=LIMITS, resources=[], reap=timedelta(seconds=0.2))

    async with h.engine.worker():
        await h.advance(timedelta(hours=1))
        ahead = await h.engine.start(Call, {}, rate_limit="fast")
        await ahead.result(timeout=30)
        await databases.move_clock(h.url, timedelta(0))
        handles = [await h.engine.start(Call, {}, rate_limit="fast") for _ in range(5)]
        ends = await asyncio.gather(*(handle.wait(timeout=30) for handle in handles))

    assert [end.status for end in ends] == [Status.DONE] * 5
