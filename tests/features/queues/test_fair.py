"""Fair queues: tenants take turns, however much one starts, and whatever the workers do."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Context, Done, Machine, Next, Outcome, Spawn, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

FAIR = {"default": "tenant"}
OFTEN = timedelta(milliseconds=20)
# As start.sql writes rows into a fair queue, and their states, by the server itself.
IMPORT = """
with started as (
  insert into stepwell.instances
    (machine, version, step, queue, due_at, created_at, updated_at, tenant, share)
  select 'Work', 1, 'start', 'default', stepwell.now(), stepwell.now(), stepwell.now(), 'large',
         hashtextextended('large', 0)
  from generate_series(1, $1::integer)
  returning id
)
insert into stepwell.instance_data (id, state)
select s.id, '{}' from started s
"""


@dataclass
class Order:
    """The tenants of started steps, in their order."""

    begun: list[str] = field(default_factory=list)


class Work(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun.append(ctx.tenant)
        await asyncio.sleep(0)
        return Done()

    @step
    async def spawn(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Work.child(step="start")] * 2, then=self.start)

    @step
    async def move(self, ctx: Context[Any]) -> Outcome:
        return Next(self.start, queue="default")


async def working(make_harness: MakeHarness, **settings: Any) -> tuple[Harness, Order]:
    order = Order()
    return await make_harness([Work], resources=order, **{"fair_by": FAIR, **settings}), order


async def ended(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def unfit(h: Harness) -> int:
    """How many live rows have a fairness key that does not fit their queue."""
    [(number,)] = await h.sql(
        "select count(*) from stepwell.instances i left join stepwell.queues q on q.name = i.queue "
        "where i.finished_at is null and (i.share is null) <> (q.fair_by is null)"
    )
    return int(number)


@pytest.mark.parametrize("prefetch", [0, 5])
async def test_a_single_instance_starts_within_twice_the_slots_at_any_backlog(
    make_harness: MakeHarness, prefetch: int
) -> None:
    slots = 5
    h, order = await working(make_harness, prefetch=prefetch)
    async with h.engine.worker({"default": slots}):
        await h.engine.start_many([Work.child(tenant="large")] * 1_000)
        await eventually(lambda: len(order.begun) > 2 * slots)

        small = await h.engine.start(Work, tenant="small")
        before = len(order.begun)
        await small.wait(timeout=30)

        assert order.begun.index("small") - before <= 2 * slots + prefetch


async def test_a_single_instance_starts_in_time_beside_100_000_of_another_tenant(
    make_harness: MakeHarness,
) -> None:
    slots = 5
    h, order = await working(make_harness)
    async with h.engine.worker({"default": slots}):  # makes the queue fair
        pass
    await h.sql(IMPORT, 100_000)

    async with h.engine.worker({"default": slots}):
        await eventually(lambda: len(order.begun) > 2 * slots)
        small = await h.engine.start(Work, tenant="small")
        before = len(order.begun)
        await small.wait(timeout=30)
        later = order.begun.index("small") - before

    [(waiting,)] = await h.sql("select count(*) from stepwell.instances where status = 'runnable'")
    assert waiting > 90_000
    assert later <= 2 * slots


async def test_a_worker_skips_tenants_with_locked_rows(make_harness: MakeHarness) -> None:
    h, order = await working(make_harness)
    async with h.engine.worker({"default": 1}):  # makes the queue fair
        pass
    await h.engine.start_many([Work.child(tenant=f"held{n}") for n in range(20)])
    free = await h.engine.start(Work, tenant="free")
    foreign = await asyncpg.connect(h.url)
    async with foreign.transaction():
        await foreign.execute("select from stepwell.instances where tenant like 'held%' for update")

        async with h.engine.worker({"default": 1}):
            await free.result(timeout=30)
            with armed("timers.ticked") as ticked, armed("claimer.before_claim") as claiming:
                await ticked.reached(1)
                looks = len(claiming.facts)

        assert order.begun == ["free"]
        assert looks <= 150  # it polls a hundred times a second, not as fast as it can
    await foreign.close()


async def test_each_of_more_tenants_than_slots_gets_its_turn_with_two_workers(make_harness: MakeHarness) -> None:
    h, order = await working(make_harness)
    async with h.engine.worker({"default": 1}):  # makes the queue fair
        pass
    await h.engine.start_many([Work.child(tenant=f"t{n}") for n in range(20)] * 5)
    await h.engine.start_many([Work.child(tenant="large")] * 500)

    async with h.engine.worker({"default": 4}), h.another_engine() as other, other.worker({"default": 4}):
        await eventually(lambda: ended(h))

    assert len(set(order.begun[:42])) == 21  # one of two workers has completed a turn by then
    assert Counter(order.begun)["large"] == 500


async def test_a_queue_that_becomes_fair_and_back_runs_every_waiting_row_once(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h, order = await working(make_harness, poll=OFTEN, max_poll=OFTEN)
    await h.engine.start_many([Work.child(tenant=f"t{n % 9}") for n in range(1_200)])
    assert not await h.sql("select from stepwell.queues")
    caplog.set_level(logging.WARNING, logger="stepwell")

    with armed("fair_migration.moved") as moved:
        async with h.engine.worker({"default": 5}):
            await moved.reached()
            assert caplog.records == []
            async with h.another_engine(fair_by={}) as other, other.worker({"default": 5}):
                await eventually(lambda: unfit_is_none(h))
                assert "queue 'default' is now not fair" in caplog.text
            await eventually(lambda: ended(h))

    assert max(facts["rows"] for facts in moved.facts) <= 1_000
    assert Counter(order.begun) == Counter(f"t{n % 9}" for n in range(1_200))


async def unfit_is_none(h: Harness) -> bool:
    return await unfit(h) == 0


async def test_a_worker_of_an_ordinary_queue_writes_nothing_about_fairness(make_harness: MakeHarness) -> None:
    h, _ = await working(make_harness, fair_by={"elsewhere": "tenant"})

    async with h.engine.worker():
        assert await h.sql("select from stepwell.queues") == []


async def test_every_way_into_a_fair_queue_sets_the_fairness_key(make_harness: MakeHarness) -> None:
    h, order = await working(make_harness)
    async with h.engine.worker({"default": 5, "other": 5}):
        started = [
            await h.engine.start(Work, tenant="a", delay=timedelta(hours=1)),
            await h.engine.start(Work, tenant="a", key="k", delay=timedelta(hours=1)),
            await h.engine.start(Work, tenant="a", queue="other", step="move"),
            await h.engine.start(Work, tenant="a", step="spawn"),
        ]
        await h.sql("select stepwell.start('Work', '{}', tenant => 'a', delay => '1 hour')")
        for handle in started[2:]:
            await handle.wait(timeout=30)

        shares = await h.sql("select distinct share from stepwell.instances")

    assert [row["share"] is not None for row in shares] == [True]
    assert len(order.begun) == 4


async def test_an_instance_that_leaves_a_fair_queue_loses_its_fairness_key(make_harness: MakeHarness) -> None:
    h, _ = await working(make_harness, fair_by={"other": "tenant"})
    async with h.engine.worker({"default": 5, "other": 5}):
        moving = await h.engine.start(Work, tenant="a", queue="other", step="move")
        await moving.wait(timeout=30)

        assert [row["share"] for row in await h.sql("select share from stepwell.instances")] == [None]


async def test_a_drain_of_the_test_kit_runs_fair_queues(make_harness: MakeHarness) -> None:
    h, order = await working(make_harness)
    await h.engine.start_many([Work.child(tenant=tenant) for tenant in "aaaabb"])

    await h.drain()
    await h.engine.start_many([Work.child(tenant=tenant, queue="other") for tenant in "aabb"])
    await h.drain()

    assert len(order.begun) == 10


async def test_queues_are_listed_with_their_fairness(make_harness: MakeHarness) -> None:
    h, _ = await working(make_harness)
    async with h.engine.worker({"default": 5}):
        pass
    await h.engine.start_many([Work.child(tenant="a")] * 3)

    [queue] = await h.engine.queues.list()

    assert (queue.name, queue.fair_by, queue.runnable) == ("default", "tenant", 3)


async def test_a_fair_queue_is_paused_and_resumed(make_harness: MakeHarness) -> None:
    h, order = await working(make_harness)
    async with h.engine.worker({"default": 5}) as worker:
        await h.engine.queues.pause("default")
        work = await h.engine.start(Work, tenant="a")
        await eventually(lambda: worker._graph.all_queue_slots["default"].is_paused)
        assert order.begun == []

        await h.engine.queues.resume("default")

        await work.result(timeout=30)
