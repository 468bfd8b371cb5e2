"""What operators and clients see of waiting instances: the tree, what they wait for, when they settle."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, Handle, InvalidInput, Machine, Retry, Spawn, Status, step
from tests.conftest import MakeHarness
from tests.features.signals.machines import Item, Order, Waiter
from tests.support.waiting import eventually, held


class Grand(Machine):
    """An order and an item below it."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        items = [{"number": n, "ends": "parked"} for n in range(2)]
        return Spawn([Order.child({"items": items}), Item.child({"ends": "parked"})], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


async def shape(h: Any, instance_id: int) -> list[tuple[int, str]]:
    return [(depth, instance.machine) for instance, depth in await h.engine.insights.tree(instance_id)]


async def test_rule_5_a_tree_shows_the_whole_family_from_any_member(make_harness: MakeHarness) -> None:
    """Rule 5: from the topmost parent down, depth first, from any member of the tree."""
    h = await make_harness([Grand, Order, Item])
    grand = await h.engine.start(Grand)
    whole = [(0, "Grand"), (1, "Order"), (2, "Item"), (2, "Item"), (1, "Item")]

    async with h.engine.worker():
        await eventually(lambda: has_grown(h, grand, 5))
        family = [instance.id for instance, _ in await h.engine.insights.tree(grand.id)]

    assert [await shape(h, member) for member in family] == [whole] * 5
    parents = [instance.parent_id for instance, _ in await h.engine.insights.tree(family[3])]
    assert parents == [None, grand.id, family[1], family[1], grand.id]


async def has_grown(h: Any, root: Handle, number: int) -> bool:
    return len(await h.engine.insights.tree(root.id)) == number


async def test_rule_5_a_tree_of_one_and_of_an_unknown_instance(make_harness: MakeHarness) -> None:
    """Rule 5: an instance without relatives is its own tree; an unknown id has none."""
    h = await make_harness([Item])
    item = await h.engine.start(Item)

    assert await shape(h, item.id) == [(0, "Item")]
    for unknown in (999, 0, -1, 2**63, 2**100):
        assert await h.engine.insights.tree(unknown) == []
    for wrong in ("order:42", None, True, 1.5):
        with pytest.raises(InvalidInput):
            await h.engine.insights.tree(wrong)  # type: ignore[arg-type]


async def test_rule_12_a_parked_instance_says_what_it_waits_for(make_harness: MakeHarness) -> None:
    """Rules 5 and 12: in words: the signals it awaits, or how many children."""
    h = await make_harness([Waiter, Order, Item])
    one = await h.engine.start(Waiter)
    two = await h.engine.start(Waiter, {"names": ["paid", "it's refused"]})
    order = await h.engine.start(Order, {"items": [{"ends": "parked"}] * 3})

    async with h.engine.worker():
        said = [(await handle.wait(30, until="settled")).waiting_for for handle in (one, two, order)]

    assert said == ["signal 'go'", "signal 'paid' or \"it's refused\"", "3 children"]


async def test_rule_12_a_timeout_of_result_says_what_the_instance_waits_for(make_harness: MakeHarness) -> None:
    """Rule 12: TimeoutError shows the status of the instance and what it waits for."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.engine.worker():
        await waiter.wait(30, until="settled")
        with pytest.raises(TimeoutError) as caught:
            await waiter.result(timedelta(0))

    assert str(caught.value) == (
        f"Waiter #{waiter.id} is still awaiting_signal at step 'woken', waiting for signal 'go'"
    )


async def test_rule_11_settled_is_parked_or_ended_and_terminal_waits_through_parks(make_harness: MakeHarness) -> None:
    """Rule 11, Scenario 157: until="settled" returns when parked; until="terminal" continues to wait; signal: done."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.engine.worker():
        settled = await waiter.wait(30, until="settled")
        terminal = asyncio.create_task(waiter.wait(30))
        busy = await waiter.wait(timedelta(0), until="terminal")
        await waiter.signal("go")
        ended = await terminal
        after = await waiter.wait(30, until="settled")

    assert (settled.status, busy.status) == (Status.AWAITING_SIGNAL, Status.AWAITING_SIGNAL)
    assert (ended.status, after.status) == (Status.DONE, Status.DONE)


async def test_rule_11_a_client_that_waits_until_settled_is_told_of_the_park(make_harness: MakeHarness) -> None:
    """Rule 11: the park is announced to a waiting client, also in another engine."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.another_engine() as other:
        waiting = asyncio.create_task(other.wait(waiter.id, timeout=30, until="settled"))
        async with h.engine.worker():
            settled = await waiting

    assert settled.status is Status.AWAITING_SIGNAL


async def test_rule_5_a_parent_settles_while_its_children_run(make_harness: MakeHarness) -> None:
    """Rule 5: awaiting_children is settled too."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"ends": "parked"}]})

    async with h.engine.worker():
        settled = await order.wait(30, until="settled")

    assert (settled.status, settled.children_pending) == (Status.AWAITING_CHILDREN, 1)


async def test_rule_3_a_retry_that_waits_for_its_time_is_not_settled(make_harness: MakeHarness) -> None:
    """Rule 3, Scenario 158: in retry backoff: still runnable, never settled, never failed."""

    class Patient(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Retry | Await:
            return Retry(timedelta(hours=1)) if ctx.attempt == 0 else Await("go", then=self.start)

    h = await make_harness([Patient])
    patient = await h.engine.start(Patient)

    async with h.engine.worker():
        await held(patient, attempt=1)
        busy = await patient.wait(timedelta(0), until="settled")
        await h.advance(timedelta(hours=1))
        settled = await patient.wait(30, until="settled")

    assert (busy.status, busy.attempt) == (Status.RUNNABLE, 1)
    assert settled.status is Status.AWAITING_SIGNAL
