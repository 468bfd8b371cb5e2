"""Rules 5 and 7: children in other queues, in other processes, by the thousand, and of sync machines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InvalidInput, Machine, Outcome, Spawn, UnknownMachine, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Order

NO_POLL = {"poll": timedelta(seconds=60), "max_poll": timedelta(seconds=60)}


async def test_rule_5_children_in_another_queue_are_served_by_another_worker(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 65: parent here, children there, polls of a minute: only notifications can complete it."""
    h = await make_harness([Order, Item], **NO_POLL)
    items = [{"number": n} for n in range(5)]

    async with h.another_engine() as other, h.engine.worker({"default": 5}), other.worker({"slow": 5}):
        order = await h.engine.start(Order, {"items": items, "options": [{"queue": "slow"}] * 5})
        result = await order.result(30)

    assert result == [[n, "done", 2 * n] for n in range(5)]


async def test_rule_5_two_thousand_children_join(make_harness: MakeHarness) -> None:
    """Rule 5: 2,000 children of one spawn, run by two workers, are all joined, once, in spec order."""

    class Wide(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child({"number": n}) for n in range(2_000)], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done([child.result == 2 * child.index for child in ctx.children])

    h = await make_harness([Wide, Item])
    wide = await h.engine.start(Wide)

    async with h.another_engine() as other, h.engine.worker(), other.worker():
        result = await wide.result(120)

    assert result == [True] * 2_000


async def test_rule_5_sync_machines_spawn_and_join(make_harness: MakeHarness) -> None:
    """Rule 5: plain def steps spawn, and see their children."""

    class Leaf(Machine):
        @step
        def start(self, ctx: Context[Any]) -> Done:
            return Done(ctx.state["n"] + 1)

    class Tree(Machine):
        @step
        def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn((Leaf.child({"n": n}) for n in range(3)), then=self.join)  # type: ignore[arg-type]

        @step
        def join(self, ctx: Context[Any]) -> Done:
            return Done([child.result for child in ctx.children])

    h = await make_harness([Tree, Leaf])
    tree = await h.engine.start(Tree)

    async with h.engine.worker():
        result = await tree.result(30)

    assert result == [1, 2, 3]


BAD: dict[str, tuple[Any, str]] = {
    "unknown machine": ([Item, "Itme"], "'Itme' is not registered"),
    "unregistered class": ([Item, Order], "'Order' is not registered"),
    "unknown version": ([Item.child(version=9)], "'Item version 9' is not registered"),
    "bad state": ([Item, Item.child({"number": "one"})], "state.number: expected int, got str"),
    "bad option": ([Item.child(colour="red")], "colour: is not an option of a start"),
    "bad priority": ([Item, Item, Item.child(priority=40_000)], "priority: 40000 is out of range"),
    "bad delay": ([Item.child(delay=5)], "delay: expected a timedelta"),
    "bad step": ([Item.child(step="wrok")], "has no step 'wrok'; did you mean 'work'?"),
    "bad key": ([Item.child(key="")], "key: is empty"),
    "bad scope": ([Item.child(key="a", key_scope="runnable")], "key_scope: 'runnable' is not allowed"),
    "no machine": ([Item, 5], "machine: expected a Machine class, a job or a name, got 5"),
    "no spec": ([Item, (Item, {}, {}, {})], "children[1]: expected Machine.child(state, …) or (machine, state)"),
    "no list": (Item, "children: expected a list, got type"),
    "words": ("Item", "children: expected a list, got str"),
    "nothing": (None, "children: expected a list, got NoneType"),
    "then": ([Item], "has no step 'jion'"),
}


class Careless(Machine):
    """Returns the bad spawn that its state names; `handle` is done with the error that it received."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        children, _ = BAD[ctx.state["bad"]]
        return Spawn(children, then="jion" if ctx.state["bad"] == "then" else self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done("never")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Done:
        return Done([isinstance(error, InvalidInput), str(error), list(getattr(error, "__notes__", []))])


async def test_rule_7_a_bad_child_spec_goes_to_handle_and_inserts_nothing(make_harness: MakeHarness) -> None:
    """Rules 5 and 7, Scenario 18: handle receives the error, with the position in the list; no child is inserted."""
    h = await make_harness([Careless, Item])
    handles = {bad: await h.engine.start(Careless, {"bad": bad}) for bad in BAD}

    async with h.engine.worker():
        told = {bad: await handle.result(30) for bad, handle in handles.items()}

    wrong = {bad: words for bad, (is_input, words, _) in told.items() if not is_input or BAD[bad][1] not in words}
    assert wrong == {}
    assert told["bad priority"][2] == ["in children[2]"]
    assert await count(h, "instances") == len(BAD)


async def test_rule_7_a_child_that_is_too_large_is_refused(make_harness: MakeHarness) -> None:
    """Rule 7: max_payload holds for the state of a child as for any other."""

    class Heavy(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Item.child({"ends": "x" * 2_000})], then=self.start)

    h = await make_harness([Heavy, Item], max_payload=1_024)
    heavy = await h.engine.start(Heavy)

    async with h.engine.worker():
        ended = await heavy.wait(30)

    assert ended.error is not None
    assert (ended.error.type, await count(h, "instances")) == ("PayloadTooLarge", 1)


async def test_rule_5_a_start_of_an_unknown_child_machine_is_refused_by_name(make_harness: MakeHarness) -> None:
    """Rule 5: the same message as in start_many."""
    h = await make_harness([Item])

    with pytest.raises(UnknownMachine, match=r"'Itme' is not registered.*did you mean 'Item'"):
        await h.engine.start_many([Item, "Itme"])

    assert await count(h, "instances") == 0
