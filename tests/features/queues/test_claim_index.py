"""Rule 24: a row that may not run yet is not in the claim index."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Machine, RateLimit, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

CLAIMABLE = """select count(*) from stepwell.instances
               where status = 'runnable' and hold is null and concurrency_key = 'k'"""
BEHIND = "select count(*) from stepwell.instances where status = 'runnable' and hold = 'key' and concurrency_key = 'k'"
LIMITS = [ConcurrencyLimit("k", 3), RateLimit("k", 200, burst=1)]
COUNT_TURNS = (  # how often a row was held, or admitted
    "create sequence public.turns",
    """
    create function public.count_turn() returns trigger language plpgsql as $$
    begin
      perform nextval('public.turns');
      return null;
    end
    $$
    """,
    """
    create trigger count_turn after update on stepwell.instances
    for each row when (old.hold is distinct from new.hold) execute function public.count_turn()
    """,
)


class Keyed(Machine):
    """Waits for the gate the first time, and notes which other rows of its key are claimable."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        resources = ctx.resources
        resources["entered"].set()
        await resources["gate"].wait()
        resources["claimable"].append(await count(resources["harness"], CLAIMABLE))
        return Done(ctx.id)

    @step
    async def free(self, ctx: Context[Any]) -> Done:
        return Done("free")


async def count(harness: Harness, sql: str) -> int:
    [row] = await harness.sql(sql)
    return int(row["count"])


async def keyed_harness(make_harness: MakeHarness, **options: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {"entered": asyncio.Event(), "gate": asyncio.Event(), "claimable": []}
    harness = await make_harness([Keyed], resources=resources, **options)
    resources["harness"] = harness
    return harness, resources


async def test_rule_24_rows_behind_a_busy_key_leave_the_index_and_others_run(make_harness: MakeHarness) -> None:
    """Rule 24: a saturated key never starves unrelated work: 60 urgent rows of one key, two slots.

    Scenarios 86, 87, 88.
    """
    h, resources = await keyed_harness(make_harness)
    keyed = await h.engine.start_many([Keyed.child(concurrency_key="k", priority=-1)] * 60)

    async with h.engine.worker({"default": 2}) as worker:
        await resources["entered"].wait()
        unrelated = [await h.engine.start(Keyed, step="free") for _ in range(10)]
        results = [await handle.result(timeout=30) for handle in unrelated]
        await eventually(lambda: behind(h, 59))
        claimed = worker.stats.claimed
        resources["gate"].set()
        ended = [await handle.result(timeout=60) for handle in keyed]

    assert (results, claimed) == (["free"] * 10, 11)
    assert ended == [handle.id for handle in keyed]


async def test_rule_24_a_key_releases_its_rows_one_by_one_for_two_workers(make_harness: MakeHarness) -> None:
    """Rule 24: whatever frees a key unmarks its next one, and only that; no claim-and-release storm."""
    h, resources = await keyed_harness(make_harness)
    keyed = await h.engine.start_many([Keyed.child(concurrency_key="k")] * 30)

    async with h.another_engine() as other, h.engine.worker() as first, other.worker() as second:
        await eventually(lambda: behind(h, 29))
        resources["gate"].set()
        for handle in keyed:
            await handle.result(timeout=60)
        claimed = first.stats.claimed + second.stats.claimed

    assert resources["claimable"] == [0] * 30
    assert claimed == 30


@pytest.mark.parametrize(("limit", "at_once"), [("concurrency_limit", 3), ("rate_limit", 1)])
async def test_rule_24_a_saturated_limit_writes_each_row_once_for_two_workers(
    make_harness: MakeHarness, limit: str, at_once: int
) -> None:
    """Rule 24: a row is held once, admitted once and claimed once; no claim-and-release storm, and no other write."""
    h, resources = await keyed_harness(make_harness, limits=LIMITS, reap=timedelta(hours=1))
    for statement in COUNT_TURNS:
        await h.sql(statement)

    async with AsyncExitStack() as stack:
        with armed("reaper.ticked") as ticked:  # a reaper may admit a row that finds no slot, and is held again
            first = await stack.enter_async_context(h.engine.worker())
            other = await stack.enter_async_context(h.another_engine())
            second = await stack.enter_async_context(other.worker())
            await ticked.reached(2)
        limited = await h.engine.start_many([Keyed.child(**{limit: "k"})] * 30)
        await resources["entered"].wait()
        resources["gate"].set()
        for handle in limited:
            await handle.result(timeout=60)
        claimed = first.stats.claimed + second.stats.claimed

    [(turns,)] = await h.sql("select last_value from public.turns")
    again = 2 * 2  # a row that is admitted when both workers look may find no slot or token, and is held again
    assert claimed == 30
    assert 2 * (30 - at_once) <= turns <= 2 * (30 - at_once) + again


async def test_rule_24_rows_of_the_future_are_not_in_the_index(make_harness: MakeHarness) -> None:
    """Rule 24: a future row is held until its time, and no claim reads it. Scenario 171."""
    h, _ = await keyed_harness(make_harness)
    future = await h.engine.start_many([Keyed.child(step="free", delay=timedelta(hours=1))] * 10)
    now = await h.engine.start(Keyed, step="free")
    holds = await h.sql("select hold, count(*) from stepwell.instances group by hold order by hold nulls last")

    async with h.engine.worker() as worker:
        await now.result(timeout=30)
        claimed = worker.stats.claimed
        await h.advance(timedelta(hours=2))
        results = [await handle.result(timeout=30) for handle in future]

    assert [(row["hold"], row["count"]) for row in holds] == [("due", 10), (None, 1)]
    assert (claimed, results) == (1, ["free"] * 10)


async def test_rule_24_the_claim_reads_an_index_that_holds_only_what_may_run(make_harness: MakeHarness) -> None:
    """Rule 24: not in the claim's index at all."""
    h, _ = await keyed_harness(make_harness)

    rows = await h.sql("select indexdef from pg_indexes where indexname in ('instances_claim', 'instances_fair')")

    assert len(rows) == 2
    what_may_run = "WHERE ((status = 'runnable'::text) AND (hold IS NULL) AND (share IS "
    assert all(what_may_run in row["indexdef"] for row in rows)


async def behind(harness: Harness, expected: int) -> bool:
    return await count(harness, BEHIND) == expected
