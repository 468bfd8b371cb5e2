"""Rule 14: the same event has one effect per instance, however often it is sent, until the instance ends."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell import Await, Context, Done, Machine, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox
from tests.features.signals.machines import Waiter


class Counter(Machine, initial="wait"):
    """Counts the ticks it receives, and consumes each; ends at "stop"."""

    @step
    async def wait(self, ctx: Context[Any]) -> Await | Done:
        names = [signal.name for signal in ctx.awaited]
        ctx.state["ticks"] = ctx.state.get("ticks", 0) + names.count("tick")
        if "stop" in names:
            return Done(ctx.state["ticks"])
        return Await("tick", "stop", then=self.wait, consume=True)


async def test_rule_14_the_same_dedup_key_twice_is_one_signal(make_harness: MakeHarness) -> None:
    """Rule 14, Scenario 28: same dedup key twice, one row; none at all twice, two rows."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    for payload in (1, 2):
        await waiter.signal("go", payload, dedup_key="evt-7")
        await waiter.signal("plain", payload)

    assert await inbox(h, waiter.id) == [("go", False), ("plain", False), ("plain", False)]


async def test_rule_14_a_dedup_key_counts_across_names(make_harness: MakeHarness) -> None:
    """Rule 14: the dedup key is per instance, not per name: the first one sent wins."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    await waiter.signal("paid", dedup_key="evt-7")
    await waiter.signal("refused", dedup_key="evt-7")

    assert await inbox(h, waiter.id) == [("paid", False)]


async def test_rule_14_a_dedup_key_is_per_instance(make_harness: MakeHarness) -> None:
    """Rule 14: the same event may go to two instances."""
    h = await make_harness([Waiter])
    first, second = [await h.engine.start(Waiter) for _ in range(2)]

    async with h.engine.worker():
        await first.signal("go", 1, dedup_key="evt-7")
        await second.signal("go", 2, dedup_key="evt-7")
        results = [await first.result(30), await second.result(30)]

    assert results == [[["go", 1]], [["go", 2]]]


async def test_rule_14_a_consumed_dedup_key_is_remembered(make_harness: MakeHarness) -> None:
    """Rule 14, Scenario 40: the same dedup key after consumption has no effect."""
    h = await make_harness([Counter])
    counter = await h.engine.start(Counter)

    async with h.engine.worker():
        await counter.signal("tick", dedup_key="evt-1")
        await counter.wait(30, until="settled")
        await counter.signal("tick", dedup_key="evt-2")
        await counter.wait(30, until="settled")
        await counter.signal("tick", dedup_key="evt-1")
        remembered = await inbox(h, counter.id)
        await counter.signal("stop")
        result = await counter.result(30)

    assert remembered == [("tick", True), ("tick", True)]
    assert result == 2


async def test_rule_14_a_consumed_signal_keeps_its_dedup_key_and_not_its_payload(make_harness: MakeHarness) -> None:
    """Rule 14: the key is remembered; the payload is deleted."""
    h = await make_harness([Counter])
    counter = await h.engine.start(Counter)
    async with h.engine.worker():
        await counter.signal("tick", {"big": "x" * 1_000}, dedup_key="evt-1")
        await counter.wait(30, until="settled")
        await counter.signal("tick", {"big": "y"})
        await counter.wait(30, until="settled")

    rows = await h.sql("select dedup_key, payload from stepwell.signals")

    assert [tuple(row) for row in rows] == [("evt-1", None)]


async def test_rule_14_the_successor_of_a_key_remembers_nothing(make_harness: MakeHarness) -> None:
    """Rule 14: remembered until the instance ends; the next instance of the key accepts the event again."""
    h = await make_harness([Waiter])

    async with h.engine.worker():
        results = []
        for number in (1, 2):
            waiter = await h.engine.start(Waiter, key="order:42")
            await h.engine.signal("order:42", "go", number, dedup_key="evt-7")
            results.append(await waiter.result(30))

    assert results == [[["go", 1]], [["go", 2]]]


async def test_rule_14_ten_concurrent_signals_of_one_event_are_one(make_harness: MakeHarness) -> None:
    """Rule 14: also when the redeliveries meet."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    await asyncio.gather(*(waiter.signal("go", n, dedup_key="evt-7") for n in range(10)))

    assert await inbox(h, waiter.id) == [("go", False)]
