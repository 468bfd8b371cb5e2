"""Rule 30: an ended instance is pruned after its retention, never while a live parent still needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, NotFound, Spawn, Status, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Order, Waiter
from tests.support.waiting import eventually

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


class Brief(Machine, retention=HOUR):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class Kept(Machine, retention=False):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class Plain(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def ended(h: Harness, *machines: Any) -> list[int]:
    """Start these instances, and run them to their end."""
    handles = [await h.engine.start(machine) for machine in machines]
    async with h.engine.worker():
        for handle in handles:
            await handle.wait(30)
    return [handle.id for handle in handles]


async def prune(h: Harness, *, later: timedelta = timedelta(0)) -> int:
    """Let a worker prune once, this much later; returns the number of deleted rows."""
    await h.advance(later)
    with armed("pruner.pruned") as pruned:
        async with h.engine.worker():
            facts = await pruned.reached()
    return int(facts["deleted"])


async def remaining(h: Harness) -> list[str]:
    return [row["machine"] for row in await h.sql("select machine from stepwell.instances order by id")]


async def test_rule_30_a_retention_of_a_machine_overrides_that_of_the_engine(make_harness: MakeHarness) -> None:
    """Rule 30, Scenario 145: an hour, a day (the engine's default) and for ever; fresh and live ones are kept."""
    h = await make_harness([Brief, Kept, Plain, Waiter])
    await ended(h, Brief, Kept, Plain)
    await h.engine.start(Waiter)

    steps = [(await prune(h, later=later), await remaining(h)) for later in (HOUR / 2, HOUR, DAY, 1000 * DAY)]

    assert steps == [
        (0, ["Brief", "Kept", "Plain", "Waiter"]),
        (1, ["Kept", "Plain", "Waiter"]),
        (1, ["Kept", "Waiter"]),
        (0, ["Kept", "Waiter"]),
    ]


async def test_rule_30_the_engines_retention_applies_to_machines_without_one(make_harness: MakeHarness) -> None:
    """Rule 30: Engine(retention=False) keeps all instances except those with a retention of their own."""
    h = await make_harness([Brief, Plain], retention=False)
    await ended(h, Brief, Plain)

    deleted = await prune(h, later=1000 * DAY)

    assert (deleted, await remaining(h)) == (1, ["Plain"])


async def test_rule_30_a_retention_of_zero_prunes_at_once(make_harness: MakeHarness) -> None:
    """Rule 30: retention=timedelta(0): the next sweep deletes ended instances."""
    h = await make_harness([Plain], retention=timedelta(0))
    [plain] = await ended(h, Plain)

    await prune(h)
    with pytest.raises(NotFound):
        await h.engine.get(plain)

    assert await count(h, "instances") == 0


async def test_rule_30_every_kind_of_end_is_pruned_with_all_its_rows(make_harness: MakeHarness) -> None:
    """Rule 30, Scenario 146: the inbox, with its remembered dedup keys, and the side row go with the instance."""
    h = await make_harness([Item])
    ends = [await h.engine.start(Item, {"ends": e}) for e in ("done", "failed", "parked")]
    async with h.engine.worker():
        await ends[2].wait(30, until="settled")
        await h.engine.signal_many([(ends[2].id, "other"), (ends[2].id, "more", 1, "evt-1")])
        await ends[2].cancel()
        statuses = [(await end.wait(30)).status for end in ends]

    deleted = await prune(h, later=2 * DAY)

    assert (statuses, deleted) == ([Status.DONE, Status.FAILED, Status.CANCELLED], 3)
    assert [await count(h, table) for table in ("instances", "instance_data", "signals")] == [0, 0, 0]


async def test_rule_30_children_of_a_live_parent_are_kept_until_it_has_ended(make_harness: MakeHarness) -> None:
    """Rule 30, Scenario 146: an ended child stays as long as its parent may read it; then both are deleted."""
    h = await make_harness([Order, Item])
    items = [{"number": 1}, {"number": 2, "ends": "parked"}]
    order = await h.engine.start(Order, {"items": items, "options": [{}, {"key": "parked"}]})
    async with h.engine.worker():
        await h.engine.wait(order.id, timeout=30, until="settled")
        _, (first, _), _ = await h.engine.insights.tree(order.id)
        await h.engine.wait(first.id, timeout=30)
        await h.engine.wait("parked", timeout=30, until="settled")

    while_alive = await prune(h, later=2 * DAY)
    await h.engine.signal("parked", "go")
    async with h.engine.worker():
        result = await order.result(30)
    await prune(h, later=2 * DAY)  # the worker before may have pruned the first child as soon as its parent ended

    assert (while_alive, result) == (0, [[0, "done", 2], [1, "done", 4]])
    assert await remaining(h) == []


async def test_rule_30_a_child_outlives_its_pruned_parent(make_harness: MakeHarness) -> None:
    """Rule 30: a parent that was cancelled alone is pruned; its child continues, and its end is not counted."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 4, "ends": "parked"}], "options": [{"key": "item"}]})
    async with h.engine.worker():
        await order.wait(30, until="settled")
        await h.engine.wait("item", timeout=30, until="settled")
        await order.cancel(cascade=False)

    deleted = await prune(h, later=2 * DAY)
    await h.engine.signal("item", "go")
    async with h.engine.worker():
        item = await h.engine.wait("item", timeout=30)

    assert (deleted, item.status, item.result) == (1, Status.DONE, 8)


async def test_rule_30_pruning_goes_in_bounded_batches_until_all_is_gone(make_harness: MakeHarness) -> None:
    """Rule 30, Scenario 145: at most 1,000 of a machine at once; a full batch is followed by the next at once."""
    h = await make_harness([Plain])
    await h.engine.start_many([Plain] * 2_100)
    async with h.engine.worker():
        await eventually(lambda: is_all_over(h), 60)
    await h.advance(2 * DAY)

    with armed("pruner.pruned") as pruned:
        async with h.engine.worker():
            await pruned.reached(3)

    assert [facts["deleted"] for facts in pruned.facts] == [1_000, 1_000, 100]


async def is_all_over(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def test_rule_30_a_thousand_kept_rows_do_not_hide_prunable_ones(make_harness: MakeHarness) -> None:
    """Rule 30: more spared children than a batch holds, older than the rest: the rest is pruned all the same."""

    class Wide(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([*[Plain] * 1_100, Item.child({"ends": "parked"})], then=self.start)

    h = await make_harness([Wide, Plain, Item])
    await h.engine.start(Wide)
    async with h.engine.worker():
        await eventually(lambda: has_ended(h, 1_100), 60)
        await (await h.engine.start(Plain)).result(30)

    deleted = await prune(h, later=2 * DAY)

    assert (deleted, await count(h, "instances")) == (1, 1_102)


async def has_ended(h: Harness, number: int) -> bool:
    [row] = await h.sql("select count(*) from stepwell.instances where finished_at is not null")
    return bool(row["count"] == number)


async def test_rule_30_a_retried_instance_is_not_pruned(make_harness: MakeHarness) -> None:
    """Rules 30 and 31: an instance that an operator retried is live again, however long ago it failed."""
    h = await make_harness([Item])
    failed = await h.engine.start(Item, {"ends": "failed"})
    async with h.engine.worker():
        await failed.wait(30)

    await h.engine.restart(failed.id, step=Item.work, state={"ends": "parked"})
    deleted = await prune(h, later=2 * DAY)

    assert deleted == 0
    assert not (await failed.get()).status.is_terminal
