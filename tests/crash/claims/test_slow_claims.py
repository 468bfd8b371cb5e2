"""Claims from one queue take longer than a statement may: other queues do not wait for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Machine, step
from tests.conftest import MakeHarness

# Longer than the worker waits for an answer: half of its lease.
SLEEPS = """
create function public.sleep() returns trigger language plpgsql as
$$begin perform pg_sleep(1.5); return new; end$$"""
ON_SLOW = """
create trigger slow before update on stepwell.instances for each row
when (new.queue = 'slow' and new.status = 'executing') execute function public.sleep()"""


class Slow(Machine, queue="slow"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("slow")


class Quick(Machine, queue="quick"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("quick")


async def test_a_queue_with_claims_that_take_too_long_stops_no_other_queue(make_harness: MakeHarness) -> None:
    h = await make_harness([Slow, Quick], lease=timedelta(seconds=2))
    await h.sql(SLEEPS)
    await h.sql(ON_SLOW)

    async with h.engine.worker({"slow": 5, "quick": 5}):
        slow = await h.engine.start(Slow)
        results = [await (await h.engine.start(Quick)).result(timeout=10) for _ in range(20)]
        assert (await slow.get()).status == "runnable"
        await h.sql("drop trigger slow on stepwell.instances")
        late = await slow.result(timeout=20)

    assert results == ["quick"] * 20
    assert late == "slow"
