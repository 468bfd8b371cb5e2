"""Rule 31: a cancel reaches the whole subtree by default, and a parent joins what was cancelled."""

from __future__ import annotations

from typing import Any

from stepwell import Context, Done, Machine, Spawn, Status, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import operated
from tests.features.signals.machines import Gated, Gates, Item
from tests.support.waiting import eventually

PARKED = Item.child({"number": 1, "ends": "parked"})


class Grand(Machine):
    """Two children of its own kind, each with two items."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        below = [PARKED, Item.child({"number": 2})] if ctx.state["depth"] == 0 else [Grand.child({"depth": 0})] * 2
        return Spawn(below, then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done([[child.status, child.result] for child in ctx.children])


async def grown(h: Harness) -> list[int]:
    """A family of seven, four of them parked on the two parked items; ids from the top down, depth first."""
    root = await h.engine.start(Grand, {"depth": 1})
    await eventually(lambda: stands(h, awaiting_children=3, awaiting_signal=2, done=2))
    return [instance.id for instance, _ in await h.engine.insights.tree(root.id)]


async def stands(h: Harness, **counts: int) -> bool:
    rows = await h.sql("select status, count(*) from stepwell.instances group by 1")
    return {row["status"]: row["count"] for row in rows} == counts


async def statuses(h: Harness, ids: list[int]) -> list[str]:
    return [str((await h.engine.get(i)).status) for i in ids]


async def test_rule_31_a_cancel_reaches_two_levels_and_spares_ended_children(make_harness: MakeHarness) -> None:
    """Rule 31: cascade: the instance and all below it that has not ended, with one reason and one operator."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)

        changed = await h.engine.cancel(ids[0], reason="enough", by="ann")
        seen = await statuses(h, ids)

    assert changed is True
    assert seen == ["cancelled", "cancelled", "cancelled", "done", "cancelled", "cancelled", "done"]
    for i in (ids[0], ids[1], ids[2]):
        note = await operated(h, i)
        assert (note["by"], note["reason"]) == ("ann", "enough")


async def test_rule_31_without_cascade_the_children_live_on(make_harness: MakeHarness) -> None:
    """Rule 31: cascade=False ends one instance only; its children end later, and are counted nowhere."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)

        await h.engine.cancel(ids[0], cascade=False)
        seen = await statuses(h, ids)
        await h.engine.signal(ids[2], "go")
        joined = await h.engine.wait(ids[1], timeout=30)
        root = await h.engine.get(ids[0])

    assert seen == ["cancelled", "awaiting_children", "awaiting_signal", "done",
                    "awaiting_children", "awaiting_signal", "done"]  # fmt: skip
    assert (joined.result, root.status) == ([["done", 2], ["done", 4]], Status.CANCELLED)


async def test_a_retried_parent_waits_for_the_children_that_its_cancel_spared(make_harness: MakeHarness) -> None:
    """Rules 5 and 31: it continues when all have ended, also those that ended while it was cancelled."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)
        await h.engine.cancel(ids[0], cascade=False)
        await h.engine.signal(ids[2], "go")
        await h.engine.wait(ids[1], timeout=30)

        assert await h.engine.retry(ids[0])
        again = await h.engine.get(ids[0])
        await h.engine.signal(ids[5], "go")
        root = await h.engine.wait(ids[0], timeout=30)

    assert (again.status, again.children_pending) == (Status.AWAITING_CHILDREN, 1)
    assert root.result == [["done", [["done", 2], ["done", 4]]]] * 2


async def test_a_retried_parent_continues_if_all_children_have_ended_meanwhile(make_harness: MakeHarness) -> None:
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)
        await h.engine.cancel(ids[0], cascade=False)
        for child in (ids[2], ids[5]):
            await h.engine.signal(child, "go")
        for branch in (ids[1], ids[4]):
            await h.engine.wait(branch, timeout=30)

        assert await h.engine.retry(ids[0])
        root = await h.engine.wait(ids[0], timeout=30)

    assert root.result == [["done", [["done", 2], ["done", 4]]]] * 2


async def test_rule_31_a_parent_joins_a_cancelled_child(make_harness: MakeHarness) -> None:
    """Rules 5 and 31: cancelling one branch releases the join above it, which sees it as cancelled."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)

        await h.engine.cancel(ids[1])
        still = await h.engine.get(ids[0])
        await h.engine.signal(ids[5], "go")
        root = await h.engine.wait(ids[0], timeout=30)

    assert (still.status, still.children_pending) == (Status.AWAITING_CHILDREN, 1)
    assert root.result == [["cancelled", None], ["done", [["done", 2], ["done", 4]]]]


async def test_rule_31_cancelling_all_children_one_by_one_wakes_the_parent(make_harness: MakeHarness) -> None:
    """Rules 5 and 31: the last cancelled child wakes the parent."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)

        for branch in (ids[1], ids[4]):
            await h.engine.cancel(branch)
        root = await h.engine.wait(ids[0], timeout=30)

    assert root.result == [["cancelled", None]] * 2


async def test_rule_31_a_cancelled_parent_is_not_woken_by_its_children(make_harness: MakeHarness) -> None:
    """Rule 31: the join of a cancelled parent counts, and wakes nothing."""
    h = await make_harness([Grand, Item])
    async with h.engine.worker():
        ids = await grown(h)
        await h.engine.cancel(ids[1], cascade=False)

        await h.engine.signal(ids[2], "go")
        await h.engine.wait(ids[2], timeout=30)
        cancelled = await h.engine.get(ids[1])

    assert (cancelled.status, cancelled.step, cancelled.result) == (Status.CANCELLED, "join", None)


async def test_rule_6_a_child_cancelled_during_its_commit_is_counted_once(make_harness: MakeHarness) -> None:
    """Rules 1 and 6, Scenario 63: the late Done is stale and leaves the join untouched; the cancel counted it."""

    class Pair(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child(key="item", queue="slow"), Item.child(queue="nobody's")], then=self.end)

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done([child.status for child in ctx.children])

    h = await make_harness([Pair, Item])
    pair = await h.engine.start(Pair)
    async with h.engine.worker():
        await pair.wait(30, until="settled")
    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"slow": 1}) as worker:
            await committing.reached()
            await h.engine.cancel("item")
            committing.release()
            await eventually(lambda: worker.stats.stale == 1)
            still = await pair.get()

    assert (still.status, still.children_pending) == (Status.AWAITING_CHILDREN, 1)


async def test_rule_31_executing_children_are_stopped_too(make_harness: MakeHarness) -> None:
    """Rule 31: a cascade reaches executing children."""
    gates = Gates()

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Gated, Gated], then=self.start)

    h = await make_harness([Parent, Gated], resources=gates)
    parent = await h.engine.start(Parent)
    async with h.engine.worker() as worker:
        await eventually(lambda: gates.runs == ["run", "run"])
        await parent.cancel()
        await eventually(lambda: worker.running == 0)
        family = [instance.status for instance, _ in await h.engine.insights.tree(parent.id)]

    assert family == [Status.CANCELLED] * 3
    assert gates.runs == ["run", "run", "cancelled", "cancelled"]


async def test_rule_31_a_large_subtree_is_cancelled_as_a_whole(make_harness: MakeHarness) -> None:
    """Rule 31: 500 children, some of which run right now: none is left alive."""

    class Wide(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([PARKED] * 500, then=self.start)

    h = await make_harness([Wide, Item])
    wide = await h.engine.start(Wide)
    async with h.engine.worker():
        await wide.wait(30, until="settled")
        await wide.cancel()

    assert await stands(h, cancelled=501)
