"""Limits in a fair queue: the limit holds whoever's turn it is, and with a part for each tenant, tenants take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stepwell import ConcurrencyLimit, Context, Done, Machine, RateLimit, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

LIMITS = [ConcurrencyLimit("api", 2), RateLimit("api", 1_000_000)]
LARGE = 60


@dataclass
class Door:
    """Who is inside, who has begun in which order, and whom the closed door keeps inside."""

    inside: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    begun: list[str] = field(default_factory=list)
    closed_for: set[str] = field(default_factory=set)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


class Call(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        door: Door = ctx.resources
        for name in (ctx.tenant, "all"):
            door.inside[name] += 1
            door.most[name] = max(door.most[name], door.inside[name])
        door.begun.append(ctx.tenant)
        for _ in range(2):  # turns of the loop: whoever begins beside it is inside by then
            await asyncio.sleep(0)
        if ctx.tenant in door.closed_for:
            await door.opened.wait()
        door.inside.subtract([ctx.tenant, "all"])
        return Done()


async def calling(make_harness: MakeHarness, *closed_for: str) -> tuple[Harness, Door]:
    door = Door(closed_for=set(closed_for))
    h = await make_harness([Call], limits=LIMITS, resources=door, fair_by={"default": "tenant"})
    async with h.engine.worker({"default": 1}):  # makes the queue fair
        pass
    return h, door


async def is_over(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def test_no_more_than_n_of_all_tenants_are_inside_and_each_instance_runs_once(make_harness: MakeHarness) -> None:
    h, door = await calling(make_harness)
    tenants = ["large"] * LARGE + [f"small {n}" for n in range(10)]
    await h.engine.start_many([Call.child(tenant=t, concurrency_limit="api", rate_limit="api") for t in tenants])

    async with h.engine.worker({"default": 8}), h.another_engine() as other, other.worker({"default": 8}):
        await eventually(lambda: is_over(h))

    assert door.most["all"] == 2
    assert Counter(door.begun) == Counter(tenants)


async def test_with_a_part_for_each_tenant_the_line_of_one_keeps_no_other_waiting(make_harness: MakeHarness) -> None:
    h, door = await calling(make_harness, "large")
    await h.engine.start_many([Call.child(tenant="large", concurrency_limit=("api", "large"))] * LARGE)
    small = [
        await h.engine.start(Call, tenant=tenant, concurrency_limit=("api", tenant)) for tenant in ("a", "b", "a", "b")
    ]

    async with h.engine.worker({"default": 4}):
        await eventually(lambda: door.inside["large"] == 2)
        for handle in small:
            await handle.result(timeout=30)
        assert door.inside["large"] == 2
        door.opened.set()
        await eventually(lambda: is_over(h))

    assert (door.most["large"], Counter(door.begun)["large"]) == (2, LARGE)


async def test_while_a_limit_has_room_tenants_take_turns(make_harness: MakeHarness) -> None:
    h, door = await calling(make_harness)
    tenants = ["large"] * LARGE + ["a", "b"]
    await h.engine.start_many([Call.child(tenant=t, rate_limit=("api", t)) for t in tenants])

    async with h.engine.worker({"default": 1}):
        await eventually(lambda: is_over(h))

    assert set(door.begun[:3]) == {"large", "a", "b"}


async def test_in_one_line_for_all_tenants_the_most_urgent_goes_first_whosever_it_is(make_harness: MakeHarness) -> None:
    h, door = await calling(make_harness, "first")
    await h.engine.start_many([Call.child(tenant="first", concurrency_limit="api")] * 2)

    async with h.engine.worker({"default": 4}):
        await eventually(lambda: door.inside["first"] == 2)
        await h.engine.start_many([Call.child(tenant=t, concurrency_limit="api") for t in ["large"] * 4 + ["small"]])
        await eventually(lambda: waiting(h, 5))
        door.opened.set()
        await eventually(lambda: is_over(h))

    assert door.begun[-1] == "small"


async def waiting(h: Harness, number: int) -> bool:
    """Whether so many stand in the line."""
    [(found,)] = await h.sql("select count(*) from stepwell.instances where hold = 'limit'")
    return bool(found == number)
