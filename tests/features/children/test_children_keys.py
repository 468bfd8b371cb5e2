"""Rules 5 and 20: children that are duplicates of live keys are not inserted, and not waited for."""

from __future__ import annotations

from typing import Any

import asyncpg

from stepwell import Context, Done, Machine, Spawn, Status, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Order, Waiter
from tests.support.waiting import eventually


def keyed(*keys: str | None) -> list[dict[str, Any]]:
    return [{} if key is None else {"key": key} for key in keys]


async def test_rule_5_a_spawn_of_duplicates_only_continues_at_once(make_harness: MakeHarness) -> None:
    """Rule 5, Scenario 58: zero inserted: the next step at once."""
    h = await make_harness([Order, Item, Waiter])
    await h.engine.start_many([Waiter.child(key="a"), Waiter.child(key="b")])
    order = await h.engine.start(Order, {"items": [{"number": 1}] * 2, "options": keyed("a", "b")})

    async with h.engine.worker():
        result = await order.result(30)

    assert (result, await count(h, "instances")) == ([], 3)


async def test_rule_5_some_duplicates_are_left_out_and_the_others_keep_their_index(make_harness: MakeHarness) -> None:
    """Rule 5: the join waits for those that were inserted, each at its place in the spec."""
    h = await make_harness([Order, Item, Waiter])
    await h.engine.start(Waiter, key="b")
    items = [{"number": n} for n in range(4)]
    order = await h.engine.start(Order, {"items": items, "options": keyed("a", "b", None, "d")})

    async with h.engine.worker():
        result = await order.result(30)

    assert result == [[0, "done", 0], [2, "done", 4], [3, "done", 6]]


async def test_rule_20_children_of_one_spawn_with_one_key_are_one_child(make_harness: MakeHarness) -> None:
    """Rules 5 and 20: a batch deduplicates within itself, also a spawn's; the first one wins."""
    h = await make_harness([Order, Item])
    items = [{"number": n} for n in range(3)]
    order = await h.engine.start(Order, {"items": items, "options": keyed("a", "a", "a")})

    async with h.engine.worker():
        result = await order.result(30)

    assert result == [[0, "done", 0]]


async def test_rule_18_a_child_with_a_key_is_reached_by_it(make_harness: MakeHarness) -> None:
    """Rules 5 and 18: a child's key is an address as any other's, and free at its end."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"number": 3, "ends": "parked"}], "options": keyed("item:3")})

    async with h.engine.worker():
        await order.wait(30, until="settled")
        await h.engine.signal("item:3", "go")
        result = await order.result(30)
        again = await h.engine.start(Item, {"number": 4}, key="item:3")

    assert (result, again.key) == ([[0, "done", 6]], "item:3")


async def test_rule_5_a_spawn_of_a_key_that_a_caller_has_not_committed_waits_alone(make_harness: MakeHarness) -> None:
    """Rule 5: a spawn that waits for another session's transaction delays no other commit."""
    h = await make_harness([Order, Item])
    connection = await asyncpg.connect(h.url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "insert into stepwell.instances "
        "(machine, version, step, queue, due_at, created_at, updated_at, key, key_scope) "
        "values ('Item', 1, 'work', 'elsewhere', now(), now(), now(), 'item:1', 'live')"
    )
    order = await h.engine.start(Order, {"items": [{"number": 1}], "options": keyed("item:1")})

    async with h.engine.worker():
        await eventually(lambda: is_waiting_for_a_lock(h))
        neighbours = [await (await h.engine.start(Item, {"number": n})).result(30) for n in range(3)]
        meanwhile = await order.get()
        await transaction.rollback()
        result = await order.result(30)
    await connection.close()

    assert (neighbours, meanwhile.status) == ([0, 2, 4], Status.EXECUTING)
    assert result == [[0, "done", 2]]


async def is_waiting_for_a_lock(h: Any) -> bool:
    return bool(
        await h.sql(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
            "and application_name = 'stepwell worker'"
        )
    )


async def test_rule_5_each_child_key_of_two_parents_goes_to_one_of_them(make_harness: MakeHarness) -> None:
    """Rules 5 and 20: two spawns of the same keys in opposite order: each key lives once, both parents continue."""

    class Twin(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            keys = [f"item:{n}" for n in range(50)]
            ordered = reversed(keys) if ctx.state["reversed"] else keys
            return Spawn([Item.child({"number": 1}, key=key) for key in ordered], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done(sorted(str(child.key) for child in ctx.children))

    h = await make_harness([Twin, Item])
    twins = [await h.engine.start(Twin, {"reversed": n % 2 == 1}) for n in range(6)]

    async with h.another_engine() as other, h.engine.worker(), other.worker():
        results = [await twin.result(60) for twin in twins]

    assert {key for result in results for key in result} == {f"item:{n}" for n in range(50)}
