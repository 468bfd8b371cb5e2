"""Rule 5: children and park are one commit; the parent continues when all children have ended, however they ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepwell import Await, Child, Context, Done, Machine, Spawn, Status, job, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Order, told
from tests.support.waiting import held


class Printer(Machine, version=1, name="Printer"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("version 1")


class NewPrinter(Machine, version=2, name="Printer"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("version 2")

    @step
    async def other(self, ctx: Context[Any]) -> Done:
        return Done("version 2 at other")


@job
async def double(number: int) -> int:
    return number * 2


async def test_rule_5_the_join_sees_every_result_in_spec_order(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 55: 4 children, all done: the join sees 4 results, in spec order, each with its index."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": n} for n in (7, 5, 3, 1)]})

    async with h.engine.worker():
        result = await order.result(30)

    assert result == [[0, "done", 14], [1, "done", 10], [2, "done", 6], [3, "done", 2]]


async def test_rule_5_a_parent_waits_for_the_last_child(make_harness: MakeHarness) -> None:
    """Rule 5: parked as awaiting_children, at the step that joins, while at least one child is live."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 1}, {"number": 2, "ends": "parked"}]})

    async with h.engine.worker():
        await order.wait(30, until="settled")
        [child] = [i for i, depth in await h.engine.insights.tree(order.id) if depth and i.state["number"] == 2]
        await h.engine.wait(child.id, timeout=30, until="settled")
        parked = await order.get()
        await h.engine.signal(child.id, "go")
        result = await order.result(30)

    assert (parked.status, parked.step, parked.awaits) == (Status.AWAITING_CHILDREN, "join", ())
    assert result == [[0, "done", 2], [1, "done", 4]]


async def test_rule_5_failed_and_cancelled_children_release_the_join(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 56: a failed or cancelled child releases its slot; its status and error are visible."""
    seen: list[Child] = []

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            ends = ["done", "failed", "parked"]
            return Spawn([Item.child({"number": n, "ends": e}) for n, e in enumerate(ends)], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            seen.extend(ctx.children)
            return Done()

    h = await make_harness([Parent, Item])
    parent = await h.engine.start(Parent)

    async with h.engine.worker():
        await parent.wait(30, until="settled")
        *_, (parked, _) = await h.engine.insights.tree(parent.id)
        await h.engine.cancel(parked.id, reason="not needed")
        await parent.result(30)

    assert [(c.index, c.status, c.result, c.error and c.error.message) for c in seen] == [
        (0, Status.DONE, 0, None),
        (1, Status.FAILED, None, "item 1 is broken"),
        (2, Status.CANCELLED, None, "not needed"),
    ]
    assert [(c.machine, c.version, c.key, c.state["number"]) for c in seen] == [("Item", 1, None, n) for n in range(3)]


async def test_rule_5_ten_thousand_children_are_one_commit(make_harness: MakeHarness) -> None:
    """Rule 5: at default settings, each child once and in spec order; the children wait in a queue without a worker."""

    class Crowd(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child({"number": n}, queue="later") for n in range(10_000)], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done()

    h = await make_harness([Crowd, Item])
    crowd = await h.engine.start(Crowd)

    async with h.engine.worker() as worker:
        parked = await crowd.wait(60, until="settled")
        steps = worker.stats.steps

    spawned = await h.sql(
        "select i.child_index, (d.state->>'number')::int as number from stepwell.instances i "
        "join stepwell.instance_data d using (id) where i.parent_id is not null order by i.child_index"
    )
    assert (parked.status, parked.children_pending, steps) == (Status.AWAITING_CHILDREN, 10_000, 1)
    assert [tuple(row) for row in spawned] == [(n, n) for n in range(10_000)]


async def test_rule_5_a_spawn_without_children_continues_at_once(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 57: zero children: the next step at once, with no children to see."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order)

    async with h.engine.worker() as worker:
        result = await order.result(30)

    assert (result, worker.stats.steps) == ([], 2)


async def test_rule_5_a_child_takes_every_option_of_its_spec(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 67: every option of a start is an option of a child, and its version is kept."""

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn(
                [
                    NewPrinter.child(version=1),
                    "Printer",
                    NewPrinter.child(step=NewPrinter.other),
                    Item.child({"number": 1}, key="item:1", priority=-5, concurrency_key="c", tenant="acme"),
                    Item.child(Item.State(2), delay=timedelta(hours=1)),
                    (Item, {"number": 3}),
                    double.child(double.args(4)),
                ],
                then=self.join,
            )

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done([[c.machine, c.version, c.result] for c in ctx.children])

    h = await make_harness([Parent, Printer, NewPrinter, Item, double])
    parent = await h.engine.start(Parent)

    async with h.engine.worker():
        await parent.wait(30, until="settled")
        _, *family = [instance for instance, _ in await h.engine.insights.tree(parent.id)]
        delayed = await held(h.engine.handle(family[4].id))
        await h.advance(timedelta(hours=1))
        result = await parent.result(30)

    assert result == [
        ["Printer", 1, "version 1"], ["Printer", 2, "version 2"], ["Printer", 2, "version 2 at other"],
        ["Item", 1, 2], ["Item", 1, 4], ["Item", 1, 6], ["double", 1, 8],
    ]  # fmt: skip
    keyed = family[3]
    assert (keyed.key, keyed.priority, keyed.concurrency_key, keyed.tenant) == ("item:1", -5, "c", "acme")
    assert (delayed.parent_id, delayed.state) == (parent.id, {"number": 2, "ends": "done"})


async def test_rule_5_children_have_the_tenant_of_their_parent(make_harness: MakeHarness) -> None:
    """Rules 5 and 18: a child belongs to its parent's tenant unless its spec names another."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"ends": "parked"}]}, tenant="acme")

    async with h.engine.worker():
        await order.wait(30, until="settled")

    assert [instance.tenant for instance, _ in await h.engine.insights.tree(order.id)] == ["acme", "acme"]


async def test_rule_5_a_spawn_consumes_the_signals_of_its_step_and_saves_the_state(make_harness: MakeHarness) -> None:
    """Rule 5: the signals of the spawning step are consumed, the rest stays; the state is committed with the park."""

    class Buyer(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("order", then=self.split)

        @step
        async def split(self, ctx: Context[Any]) -> Spawn:
            ctx.state["ordered"] = told(ctx.awaited)
            return Spawn([Item], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Await:
            ctx.state["at join"] = [told(ctx.awaited), told(ctx.inbox)]
            return Await("end", then=self.end)

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done({**ctx.state, "at end": told(ctx.inbox)})

    h = await make_harness([Buyer, Item])
    buyer = await h.engine.start(Buyer)
    await h.engine.signal_many([(buyer.id, "order", 1), (buyer.id, "note", 2)])

    async with h.engine.worker():
        await buyer.signal("end", 3)
        result = await buyer.result(30)

    assert result["ordered"] == [["order", 1]]
    assert result["at join"][0] == []
    assert ["note", 2] in result["at join"][1]
    assert result["at end"] == [["note", 2], ["end", 3]]


async def test_rule_5_children_and_park_are_one_commit(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 61: a spawn with a lost claim makes no children."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 1}] * 3})

    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker():
            await committing.reached()
            await order.cancel()
            committing.release()
            ended = await order.wait(30)

    assert (ended.status, await count(h, "instances")) == (Status.CANCELLED, 1)
