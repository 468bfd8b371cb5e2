"""Limits in a fair queue: the limit holds in every turn, and with a part for each tenant, tenants take turns."""

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
class Gate:
    """The running steps, the order of starts, and the tenants that the closed gate stops inside."""

    inside: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    begun: list[str] = field(default_factory=list)
    closed_for: set[str] = field(default_factory=set)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


class Call(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        gate: Gate = ctx.resources
        for name in (ctx.tenant, "all"):
            gate.inside[name] += 1
            gate.most[name] = max(gate.most[name], gate.inside[name])
        gate.begun.append(ctx.tenant)
        for _ in range(2):  # turns of the loop: a step that starts beside it is running by then
            await asyncio.sleep(0)
        if ctx.tenant in gate.closed_for:
            await gate.opened.wait()
        gate.inside.subtract([ctx.tenant, "all"])
        return Done()


async def calling(make_harness: MakeHarness, *closed_for: str) -> tuple[Harness, Gate]:
    gate = Gate(closed_for=set(closed_for))
    h = await make_harness([Call], limits=LIMITS, resources=gate, fair_by={"default": "tenant"})
    async with h.engine.worker({"default": 1}):  # makes the queue fair
        pass
    return h, gate


async def is_over(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def test_no_more_than_n_of_all_tenants_execute_and_each_runs_once(make_harness: MakeHarness) -> None:
    h, gate = await calling(make_harness)
    tenants = ["large"] * LARGE + [f"small {n}" for n in range(10)]
    await h.engine.start_many([Call.child(tenant=t, concurrency_limit="api", rate_limit="api") for t in tenants])

    async with h.engine.worker({"default": 8}), h.another_engine() as other, other.worker({"default": 8}):
        await eventually(lambda: is_over(h))

    assert gate.most["all"] == 2
    assert Counter(gate.begun) == Counter(tenants)


async def test_a_wait_queue_of_one_tenants_part_delays_no_other_tenant(make_harness: MakeHarness) -> None:
    h, gate = await calling(make_harness, "large")
    await h.engine.start_many([Call.child(tenant="large", concurrency_limit=("api", "large"))] * LARGE)
    small = [
        await h.engine.start(Call, tenant=tenant, concurrency_limit=("api", tenant)) for tenant in ("a", "b", "a", "b")
    ]

    async with h.engine.worker({"default": 4}):
        await eventually(lambda: gate.inside["large"] == 2)
        for handle in small:
            await handle.result(timeout=30)
        assert gate.inside["large"] == 2
        gate.opened.set()
        await eventually(lambda: is_over(h))

    assert (gate.most["large"], Counter(gate.begun)["large"]) == (2, LARGE)


async def test_tenants_take_turns_while_a_limit_has_room(make_harness: MakeHarness) -> None:
    h, gate = await calling(make_harness)
    tenants = ["large"] * LARGE + ["a", "b"]
    await h.engine.start_many([Call.child(tenant=t, rate_limit=("api", t)) for t in tenants])

    async with h.engine.worker({"default": 1}):
        await eventually(lambda: is_over(h))

    assert set(gate.begun[:3]) == {"large", "a", "b"}


async def test_the_most_urgent_row_of_all_tenants_is_first_in_a_shared_wait_queue(make_harness: MakeHarness) -> None:
    h, gate = await calling(make_harness, "first")
    await h.engine.start_many([Call.child(tenant="first", concurrency_limit="api")] * 2)

    async with h.engine.worker({"default": 4}):
        await eventually(lambda: gate.inside["first"] == 2)
        await h.engine.start_many([Call.child(tenant=t, concurrency_limit="api") for t in ["large"] * 4 + ["small"]])
        await eventually(lambda: waiting(h, 5))
        gate.opened.set()
        await eventually(lambda: is_over(h))

    assert gate.begun[-1] == "small"


async def waiting(h: Harness, number: int) -> bool:
    """Whether this many wait for the limit."""
    [(found,)] = await h.sql("select count(*) from stepwell.instances where hold = 'limit'")
    return bool(found == number)
