"""Rule 21: order within a queue, and no queue delays another."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from tests.conftest import MakeHarness

PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Noted(Machine):
    """Notes in the resources that it ran."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append(ctx.state["name"])
        return Done()


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_rule_21_priority_comes_before_due_time_and_due_time_before_id(
    make_harness: MakeHarness, prefetch: int
) -> None:
    """Rule 21: order within a queue: priority (lower first), then due time. Scenarios 78 and 79."""
    ran: list[str] = []
    h = await make_harness([Noted], resources=ran)
    handles = await h.engine.start_many([
        Noted.child({"name": "fifth"}, priority=5, at=PAST),
        Noted.child({"name": "fourth"}, at=PAST + timedelta(days=2)),
        Noted.child({"name": "second"}, at=PAST + timedelta(days=1)),
        Noted.child({"name": "third"}, at=PAST + timedelta(days=1)),
        Noted.child({"name": "first"}, priority=-5),
        Noted.child({"name": "sixth"}, priority=32_767),
    ])

    async with h.engine.worker({"default": 1}, prefetch=prefetch):
        for handle in handles:
            await handle.result(timeout=30)

    assert ran == ["first", "second", "third", "fourth", "fifth", "sixth"]


async def test_rule_21_a_delayed_row_keeps_its_position(make_harness: MakeHarness) -> None:
    """Rule 21: a row that came due is ordered by its due time among those that were due all along."""
    ran: list[str] = []
    h = await make_harness([Noted], resources=ran)
    early = await h.engine.start(Noted, {"name": "early"}, delay=timedelta(hours=1))
    await h.advance(timedelta(hours=2))
    late = await h.engine.start(Noted, {"name": "late"}, at=datetime.now(UTC) + timedelta(minutes=90))

    await h.sql("update stepwell.instances set hold = null")  # both in the claim's index before the first claim
    async with h.engine.worker({"default": 1}):
        await late.result(timeout=30)
        await early.result(timeout=30)

    assert ran == ["early", "late"]


async def test_rule_21_the_backlog_of_one_queue_does_not_stop_another(make_harness: MakeHarness) -> None:
    """Rule 21: one queue's backlog never slows another's claims."""
    go_on = asyncio.Event()

    class Slow(Machine, queue="slow"):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            await go_on.wait()
            return Done()

    ran: list[str] = []
    h = await make_harness([Slow, Noted], resources=ran)
    slow = await h.engine.start_many([Slow.child(priority=-100)] * 500)
    async with h.engine.worker({"slow": 2, "default": 1}):
        quick = [await h.engine.start(Noted, {"name": str(n)}) for n in range(10)]
        for handle in quick:
            await handle.result(timeout=30)
        [slots] = await h.sql("select count(*) from stepwell.instances where queue = 'slow' and status = 'executing'")
        go_on.set()
        for handle in slow:
            await handle.result(timeout=60)

    assert (ran, slots["count"]) == ([str(n) for n in range(10)], 2)


async def test_rule_21_a_worker_takes_nothing_from_queues_it_does_not_serve(make_harness: MakeHarness) -> None:
    """Rule 21: a queue belongs to the workers that name it. Scenario 82."""
    ran: list[str] = []
    h = await make_harness([Noted], resources=ran)
    other = await h.engine.start(Noted, {"name": "other"}, queue="other")
    mine = await h.engine.start(Noted, {"name": "mine"})

    async with h.engine.worker({"default": 5}):
        await mine.result(timeout=30)
    async with h.engine.worker({"other": 5}):
        await other.result(timeout=30)

    assert ran == ["mine", "other"]
