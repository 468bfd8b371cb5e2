"""Free slots of a limit that another transaction has locked: waiting rows get them as soon as that ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from stepwell import ConcurrencyLimit, Context, Done, Handle, Machine, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

OTHERS = ["two", "three", "four"]
LIMITS = [ConcurrencyLimit(name, 1) for name in ["one", *OTHERS]]
NEVER = timedelta(seconds=600)  # no reaper sweeps idle slots, and no poll claims
SOON = 8.0
WAITS = "select from pg_locks where locktype = 'transactionid' and not granted"
HOLDS = "select from stepwell.instances where id = $1 and hold = $2"


class Gated(Machine):
    """A step that ends when the test opens its gate."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun.add(ctx.id)
        await ctx.resources.gates[ctx.id].wait()
        return Done("gated")


class Gates:
    """Which steps have started, and what they wait for."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.gates = defaultdict[int, asyncio.Event](asyncio.Event)

    async def opened(self, handle: Handle) -> Any:
        """End a step; returns its result."""
        self.gates[handle.id].set()
        return await handle.result(timeout=SOON)


@asynccontextmanager
async def locked(h: Harness, lock: str) -> AsyncIterator[None]:
    """A transaction that holds a lock."""
    connection = await asyncpg.connect(h.url)
    try:
        async with connection.transaction():
            await connection.execute(f"select from stepwell.locks where number = {lock} for no key update")
            yield
    finally:
        await connection.close()


async def has(h: Harness, sql: str, *args: object) -> bool:
    return bool(await h.sql(sql, *args))


async def test_a_locked_limit_does_not_delay_slots_of_others(make_harness: MakeHarness) -> None:
    gates = Gates()
    h = await make_harness([Gated], limits=LIMITS, resources=gates, reap=NEVER, poll=NEVER, max_poll=NEVER)

    async with h.engine.worker({"default": 10}):
        first = [await h.engine.start(Gated, concurrency_limit=limit.name) for limit in LIMITS]
        await eventually(lambda: {handle.id for handle in first} <= gates.begun)
        second = [await h.engine.start(Gated, concurrency_limit=limit.name) for limit in LIMITS]
        for handle in second:
            await eventually(lambda id_=handle.id: has(h, HOLDS, id_, "limit"))
        async with locked(h, "stepwell._lock_key('limit', 'one')"):
            await gates.opened(first[0])
            results = [await gates.opened(handle) for handle in (*first[1:], *second[1:])]
            assert second[0].id not in gates.begun
        later = await gates.opened(second[0])

    assert results == ["gated"] * 2 * len(OTHERS)
    assert later == "gated"


async def test_a_slot_that_the_claimer_releases_is_passed_on_after_a_lock(make_harness: MakeHarness) -> None:
    """As when the claimer puts a row on hold for its key, and another transaction has locked its limit."""
    gates = Gates()
    h = await make_harness([Gated], limits=LIMITS, resources=gates, reap=NEVER, poll=NEVER, max_poll=NEVER)

    async with h.engine.worker({"default": 10}) as worker:
        behind = await h.engine.start(Gated, delay=NEVER, concurrency_limit="one")
        await h.sql("update stepwell.instances set hold = 'limit', due_at = now() where id = $1", behind.id)
        async with locked(h, "stepwell._lock_key('limit', 'one')"):
            worker._graph.claimer._limiter.pass_on(["one"])
            await eventually(lambda: has(h, WAITS))
            assert behind.id not in gates.begun
        result = await gates.opened(behind)

    assert result == "gated"
