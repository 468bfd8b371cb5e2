"""Rules 5 and 6: each end is counted once, at the round it belongs to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, Machine, Retry, Spawn, Status, Stop, step
from tests.conftest import MakeHarness
from tests.features.signals.machines import Item, Order
from tests.features.signals.test_await_again import SHORT_LEASE
from tests.support.waiting import eventually


class Nested(Machine):
    """Spawns two of its own kind until its depth is used up, and is done with the number of leaves below it."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn | Done:
        depth = ctx.state["depth"]
        return Done(1) if depth == 0 else Spawn([Nested.child({"depth": depth - 1})] * 2, then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done(sum(child.result for child in ctx.children))


class Picky(Machine):
    """Awaits "go", and fails with it."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Stop:
        return Stop("no")


class Hirer(Machine):
    """The parent of one Picky."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Picky.child()], then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done([child.status for child in ctx.children])


class Rounds(Machine):
    """Spawns twice, and keeps what each join saw."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Item.child({"number": n}) for n in (1, 2)], then=self.second)

    @step
    async def second(self, ctx: Context[Any]) -> Spawn:
        ctx.state["first"] = [[child.index, child.result] for child in ctx.children]
        return Spawn([Item.child({"number": n}) for n in (3, 4, 5)], then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done([ctx.state["first"], [[child.index, child.result] for child in ctx.children]])


async def test_rule_5_nested_spawns_join_each_on_its_own(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 64: each level joins on its own."""
    h = await make_harness([Nested])
    root = await h.engine.start(Nested, {"depth": 4})

    async with h.engine.worker():
        result = await root.result(60)

    assert result == 16


async def test_rule_5_a_join_sees_children_of_the_latest_round_only(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 66: a second fan-out: ctx.children holds the latest round, in spec order."""
    h = await make_harness([Rounds, Item])
    rounds = await h.engine.start(Rounds)

    async with h.engine.worker():
        result = await rounds.result(30)

    assert result == [[[0, 2], [1, 4]], [[0, 6], [1, 8], [2, 10]]]


async def test_rule_6_a_child_retried_by_an_operator_does_not_join_twice(make_harness: MakeHarness) -> None:
    """Rules 5 and 6: a failed child is counted once, also when it is retried later and ends again."""
    tries: list[int] = []

    class Flaky(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done | Stop:
            tries.append(1)
            return Stop("first time") if len(tries) == 1 else Done("second time")

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Flaky, Item.child({"ends": "parked"})], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done([[child.status, child.result] for child in ctx.children])

    h = await make_harness([Parent, Flaky, Item])
    parent = await h.engine.start(Parent)

    async with h.engine.worker():
        await parent.wait(30, until="settled")
        _, flaky, item = [instance.id for instance, _ in await h.engine.insights.tree(parent.id)]
        await h.engine.wait(flaky, timeout=30)
        await h.engine.wait(item, timeout=30, until="settled")
        await h.engine.retry(flaky)
        retried = await h.engine.wait(flaky, timeout=30)
        still = await parent.get()
        await h.engine.signal(item, "go")
        result = await parent.result(30)

    assert (retried.result, still.status, still.children_pending) == ("second time", Status.AWAITING_CHILDREN, 1)
    assert result == [["done", "second time"], ["done", 0]]


async def test_rule_6_a_child_of_an_earlier_round_is_not_counted(make_harness: MakeHarness) -> None:
    """Rules 5 and 31: the parent was restarted and spawned again; the end of an old child releases nothing."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 1, "ends": "parked"}]})

    async with h.engine.worker():
        await order.wait(30, until="settled")
        await h.engine.restart(order.id, step=Order.split)
        await eventually(lambda: has_children(h, order.id, 2))
        _, old, new = [instance.id for instance, _ in await h.engine.insights.tree(order.id)]
        for child in (old, new):
            await h.engine.wait(child, timeout=30, until="settled")
        await h.engine.signal(old, "go")
        await h.engine.wait(old, timeout=30)
        still = await order.get()
        await h.engine.signal(new, "go")
        result = await order.result(30)

    assert (still.status, still.children_pending) == (Status.AWAITING_CHILDREN, 1)
    assert result == [[0, "done", 2]]


async def test_rule_6_a_failed_child_of_an_earlier_round_is_not_counted(make_harness: MakeHarness) -> None:
    """Rules 5 and 31: the old child ends by Stop, which is no bare commit: children/join.sql counts it."""
    h = await make_harness([Hirer, Picky])
    hirer = await h.engine.start(Hirer)

    async with h.engine.worker():
        await hirer.wait(30, until="settled")
        await h.engine.restart(hirer.id, step=Hirer.start)
        await eventually(lambda: has_children(h, hirer.id, 2))
        _, old, new = [instance.id for instance, _ in await h.engine.insights.tree(hirer.id)]
        for child in (old, new):
            await h.engine.wait(child, timeout=30, until="settled")
        await h.engine.signal(old, "go")
        ended = await h.engine.wait(old, timeout=30)
        still = await hirer.get()

    assert ended.status is Status.FAILED
    assert (still.status, still.children_pending) == (Status.AWAITING_CHILDREN, 1)


async def has_children(h: Any, parent: int, number: int) -> bool:
    return len(await h.engine.insights.tree(parent)) == number + 1


async def test_rule_8_a_join_that_had_no_outcome_sees_the_same_children_again(make_harness: MakeHarness) -> None:
    """Rules 5 and 8, Scenario 68: the worker goes away in the join's step; the re-run sees the same children."""
    entered = asyncio.Event()
    seen: list[list[Any]] = []

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child({"number": n}) for n in (1, 2)], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            seen.append([[child.index, child.id, child.result] for child in ctx.children])
            if ctx.attempt == 0:
                entered.set()
                await asyncio.Event().wait()
            return Done(len(ctx.children))

    h = await make_harness([Parent, Item], **SHORT_LEASE)
    parent = await h.engine.start(Parent)

    async with h.engine.worker(drain_timeout=timedelta(0)):
        await entered.wait()
    async with h.engine.worker():
        result = await parent.result(30)

    assert result == 2
    assert seen[0] == seen[-1] != []


async def test_rule_7_handle_and_retry_see_the_children_too(make_harness: MakeHarness) -> None:
    """Rule 7: handle sees the same children as the step, and so does the retry."""
    seen: list[list[Any]] = []

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child({"number": 4})], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            seen.append([child.result for child in ctx.children])
            if ctx.attempt == 0:
                raise LookupError
            return Done()

        async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
            seen.append([child.result for child in ctx.children])
            return Retry()

    h = await make_harness([Parent, Item])
    parent = await h.engine.start(Parent)

    async with h.engine.worker():
        await parent.result(30)

    assert seen == [[8], [8], [8]]


async def test_rule_6_a_child_without_an_outcome_in_its_first_run_is_counted_once(make_harness: MakeHarness) -> None:
    """Rules 6 and 8, Scenario 60: the child's worker goes away; it re-runs; the join counts it once."""
    entered = asyncio.Event()

    class Slow(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            if ctx.attempt == 0:
                entered.set()
                await asyncio.Event().wait()
            return Done("second run")

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Slow, Item.child({"ends": "parked"}, key="other")], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done([child.result for child in ctx.children])

    h = await make_harness([Parent, Slow, Item], **SHORT_LEASE)
    parent = await h.engine.start(Parent)

    async with h.engine.worker(drain_timeout=timedelta(0)):
        await entered.wait()
    async with h.engine.worker():
        await eventually(lambda: pending_is(h, parent.id, 1))
        await h.engine.signal("other", "go")
        result = await parent.result(30)

    assert result == ["second run", 0]


async def pending_is(h: Any, parent: int, number: int) -> bool:
    return bool((await h.engine.get(parent)).children_pending == number)
