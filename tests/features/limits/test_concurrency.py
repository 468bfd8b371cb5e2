"""Concurrency limits, as an author sees them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, ConcurrencyLimit, Context, Done, Hold, Machine, Next, RateLimit, Retry, Spawn, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

LIMITS = [ConcurrencyLimit("stripe", 2), ConcurrencyLimit("bank", 1), RateLimit("stripe", 1_000)]


class Gates:
    """Lets steps start and end when a test says so, and counts those that execute."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.most = 0
        self.order: list[int] = []
        self.gate = asyncio.Event()

    async def pass_through(self, ctx: Context[Any]) -> None:
        self.inside.append(ctx.id)
        self.order.append(ctx.id)
        self.most = max(self.most, len(self.inside))
        try:
            await self.gate.wait()
        finally:
            self.inside.remove(ctx.id)


class Pay(Machine, initial="pay"):
    """One step that waits for its gate; what follows it is what the state says."""

    @step
    async def pay(self, ctx: Context[dict[str, Any]]) -> Any:  # noqa: PLR0911 - one for each way on
        await ctx.resources.pass_through(ctx)
        match (ctx.state or {}).get("then"):
            case "park":
                return Await("go", then=self.after)
            case "retry" if ctx.attempt == 0:
                return Retry(timedelta(hours=1))
            case "spawn":
                return Spawn([Quick.child(concurrency_limit="bank")], then=self.after)
            case "clear":
                return Next(self.after, concurrency_limit=None)
            case "switch":
                return Next(self.after, concurrency_limit=("bank", 7))
            case "next":
                return Next(self.after)
        return Done()

    @step
    async def after(self, ctx: Context[dict[str, Any]]) -> Any:
        return Await("end", then=self.after) if not ctx.awaited else Done()


class Declared(Machine, initial="first"):
    """Its first step has a limit of its own."""

    @step(concurrency_limit=("bank", "main"))
    async def first(self, ctx: Context[None]) -> Next:
        await ctx.resources.pass_through(ctx)
        return Next(self.second)

    @step
    async def second(self, ctx: Context[None]) -> Await:
        return Await("end", then=self.second)


class Late(Machine, initial="free"):
    """Reaches a limit in its second step, which would run ahead without one."""

    @step
    async def free(self, ctx: Context[None]) -> Next:
        return Next(self.limited)

    @step(concurrency_limit="bank")
    async def limited(self, ctx: Context[None]) -> Next:
        await ctx.resources.pass_through(ctx)
        return Next(self.after)

    @step
    async def after(self, ctx: Context[None]) -> Done:
        return Done()


class Booked(Machine, initial="book"):
    """Its one step commits with its author's writes."""

    @step(transactional=True, concurrency_limit="bank")
    async def book(self, ctx: Context[None]) -> Done:
        await ctx.connection.fetch("select 1")
        return Done()


class Quick(Machine, initial="run"):
    @step
    async def run(self, ctx: Context[None]) -> Done:
        return Done()


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Pay, Booked, Declared, Late, Quick], limits=LIMITS, run_ahead=16, resources=Gates())


async def until_held(h: Harness, number: int, hold: str = "limit") -> None:
    """Wait until this many are on hold."""

    async def look() -> bool:
        [(count,)] = await h.sql("select count(*) from stepwell.instances where hold = $1", hold)
        return bool(count == number)

    await eventually(look)


async def until_executing(h: Harness, number: int) -> None:
    async def look() -> bool:
        return len(await executing(h)) == number

    await eventually(look)


async def executing(h: Harness) -> list[tuple[int, int | None]]:
    rows = await h.sql("select id, slot from stepwell.instances where status = 'executing' order by id")
    return [(row["id"], row["slot"]) for row in rows]


async def test_rule_22_no_more_than_n_execute_and_others_leave_the_claim_index(h: Harness) -> None:
    gates: Gates = h.resources
    started = [await h.engine.start(Pay, {}, concurrency_limit="stripe") for _ in range(5)]

    async with h.engine.worker():
        await until_held(h, 3)
        waiting = await started[4].get()
        assert [slot for _, slot in await executing(h)] == [1, 2]
        gates.gate.set()
        for one in started:
            await one.result(10)

    assert gates.most == 2
    assert (waiting.hold, waiting.waiting_for) == (Hold.LIMIT, "a slot of concurrency limit 'stripe'")
    assert gates.order == [one.id for one in started]


async def test_each_part_of_a_limit_counts_separately(h: Harness) -> None:
    gates: Gates = h.resources
    for part in ("a", "a", "b", 7):
        await h.engine.start(Pay, {}, concurrency_limit=("bank", part))

    async with h.engine.worker():
        await until_held(h, 1)
        assert len(await executing(h)) == 3
        gates.gate.set()


async def test_a_limit_of_a_step_replaces_the_instances_limit_for_that_step(h: Harness) -> None:
    one = await h.engine.start(Declared, concurrency_limit="stripe")
    two = await h.engine.start(Declared)

    async with h.engine.worker():
        await until_held(h, 1)
        during = await one.get()
        h.resources.gate.set()
        after = [await handle.wait(10, until="settled") for handle in (one, two)]

    assert during.concurrency_limit == "bank:main"
    assert [instance.concurrency_limit for instance in after] == ["stripe", None]


async def test_no_step_runs_ahead_into_a_limit_or_with_an_old_slot(h: Harness) -> None:
    started = [await h.engine.start(Late) for _ in range(3)]

    async with h.engine.worker():
        await until_held(h, 2)
        h.resources.gate.set()
        for one in started:
            await one.result(10)

    assert h.resources.most == 1


@pytest.mark.parametrize(
    ("then", "limit"), [("park", "bank"), ("next", "bank"), ("clear", None), ("switch", "bank:7"), ("retry", "bank")]
)
async def test_a_holder_that_continues_or_parks_releases_its_slot_at_once(
    h: Harness, then: str, limit: str | None
) -> None:
    holder = await h.engine.start(Pay, {"then": then}, concurrency_limit="bank")
    behind = await h.engine.start(Pay, {}, concurrency_limit="bank", priority=1)

    async with h.engine.worker():
        await until_held(h, 1)
        h.resources.gate.set()
        await behind.result(10)
        after = await holder.get()

    assert after.concurrency_limit == limit
    assert await executing(h) == []


async def test_a_parent_that_waits_for_its_children_leaves_its_slot_to_them(h: Harness) -> None:
    holder = await h.engine.start(Pay, {"then": "spawn"}, concurrency_limit="bank")

    h.resources.gate.set()
    await h.drain()

    assert (await holder.get()).status is Status.AWAITING_SIGNAL


async def test_a_cancelled_holder_releases_its_slot_to_the_next_row_at_once(h: Harness) -> None:
    holder = await h.engine.start(Pay, {}, concurrency_limit="bank")

    async with h.engine.worker():
        await until_executing(h, 1)
        behind = await h.engine.start(Pay, {}, concurrency_limit="bank")
        await until_held(h, 1)
        await holder.cancel()
        await until_executing(h, 1)
        assert [id_ for id_, _ in await executing(h)] == [behind.id]
        h.resources.gate.set()
        await behind.result(10)


async def test_a_restarted_holder_releases_its_slot_to_the_next_row(h: Harness) -> None:
    holder = await h.engine.start(Pay, {}, concurrency_limit="bank")

    async with h.engine.worker():
        await until_executing(h, 1)
        behind = await h.engine.start(Pay, {}, concurrency_limit="bank", priority=-1)
        await until_held(h, 1)
        await h.engine.restart(holder.id, step=Pay.after)
        h.resources.gate.set()
        await behind.result(10)
        assert (await holder.wait(10, until="settled")).status is Status.AWAITING_SIGNAL


async def test_a_concurrency_key_and_a_limit_are_both_kept(h: Harness) -> None:
    first = await h.engine.start(Pay, {}, concurrency_limit="stripe", concurrency_key="k")
    second = await h.engine.start(Pay, {}, concurrency_limit="stripe", concurrency_key="k")
    third = await h.engine.start(Pay, {}, concurrency_limit="stripe")

    async with h.engine.worker():
        await until_held(h, 1, "key")
        await until_executing(h, 2)
        assert [id_ for id_, _ in await executing(h)] == [first.id, third.id]
        h.resources.gate.set()
        await second.result(10)


async def test_rows_without_a_limit_are_claimed_past_a_saturated_one(h: Harness) -> None:
    await h.engine.start_many([Pay.child({}, concurrency_limit="bank")] * 20)
    free = await h.engine.start(Quick, priority=10)

    async with h.engine.worker(queues={"default": 5}):
        await free.result(10)
        await until_held(h, 19)
        h.resources.gate.set()


async def test_a_transactional_step_releases_its_slot_with_its_commit(h: Harness) -> None:
    started = await h.engine.start_many([Booked] * 4)

    async with h.engine.worker():
        for one in started:
            await one.result(20)  # type: ignore[union-attr]

    assert await executing(h) == []


async def test_a_due_row_takes_its_limit_when_its_time_has_come(h: Harness) -> None:
    h.resources.gate.set()
    later = await h.engine.start(Pay, {}, concurrency_limit="bank", delay=timedelta(hours=1))

    await h.drain()
    before = await later.get()
    await h.drain(with_scheduled=True)

    assert before.hold is Hold.DUE
    await h.assert_done(later)


async def test_a_drain_runs_rows_that_wait_for_slots(h: Harness) -> None:
    h.resources.gate.set()
    await h.engine.start_many([Pay.child({}, concurrency_limit="bank")] * 5)

    tally = await h.drain(concurrency=5)

    assert tally.ended[Status.DONE] == 5
