"""Rule 19: signal_or_start does both in one call: it signals the holder of the key, or starts one and signals it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Await, Context, Done, Duplicate, InvalidInput, Machine, Status, UnknownMachine, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import count, inbox
from tests.features.signals.machines import Waiter, told


class Cart(Machine, initial="collect"):
    """Is done once it has as many items as it was started for."""

    @step
    async def collect(self, ctx: Context[Any]) -> Await | Done:
        if len(ctx.awaited) >= ctx.state["size"]:
            return Done(sorted(payload for _, payload in told(ctx.awaited)))
        return Await("item", then=self.collect)


async def test_rule_19_signal_or_start_starts_and_signals_if_the_key_is_free(make_harness: MakeHarness) -> None:
    """Rule 19: an instance is started, and the signal is in its inbox before its first step."""
    h = await make_harness([Waiter])

    waiter = await h.engine.signal_or_start(Waiter, key="order:42", signal="go", payload="first")
    async with h.engine.worker():
        result = await waiter.result(30)

    assert (waiter.key, result) == ("order:42", [["go", "first"]])


async def test_rule_19_signal_or_start_signals_the_holder_of_the_key(make_harness: MakeHarness) -> None:
    """Rule 19: the holder gets the signal, and its state stays its own."""
    h = await make_harness([Cart])
    holder = await h.engine.start(Cart, {"size": 1}, key="cart:7")

    reached = await h.engine.signal_or_start(Cart, {"size": 99}, key="cart:7", signal="item", payload="pen")
    async with h.engine.worker():
        result = await holder.result(30)

    assert (reached.id, result) == (holder.id, ["pen"])
    assert await count(h, "instances") == 1


async def test_rule_19_a_repeated_signal_or_start_deduplicates_at_one_instance(make_harness: MakeHarness) -> None:
    """Rule 19: sent again with the same dedup key it neither starts nor signals twice."""
    h = await make_harness([Waiter])

    handles = [
        await h.engine.signal_or_start(Waiter, key="order:42", signal="go", dedup_key=dedup_key)
        for dedup_key in ("evt-1", "evt-1", "evt-2")
    ]

    assert len({handle.id for handle in handles}) == 1
    assert await inbox(h, handles[0].id) == [("go", False), ("go", False)]


async def test_rule_19_ten_concurrent_signal_or_starts_make_one_instance(make_harness: MakeHarness) -> None:
    """Rule 19: ten tasks that meet on a free key: exactly one instance, and every signal delivered."""
    h = await make_harness([Cart])

    async with h.engine.worker():
        handles = await asyncio.gather(
            *(h.engine.signal_or_start(Cart, {"size": 10}, key="cart:7", signal="item", payload=n) for n in range(10))
        )
        result = await handles[0].result(30)

    assert len({handle.id for handle in handles}) == 1
    assert result == list(range(10))
    assert await count(h, "instances") == 1


async def test_rule_19_signal_or_start_after_the_end_starts_the_next_instance(make_harness: MakeHarness) -> None:
    """Rule 19: a key that an ended instance freed is free."""
    h = await make_harness([Cart])

    async with h.engine.worker():
        results = []
        for item in ("pen", "ink"):
            cart = await h.engine.signal_or_start(Cart, {"size": 1}, key="cart:7", signal="item", payload=item)
            results.append((cart.id, await cart.result(30)))

    assert [result for _, result in results] == [["pen"], ["ink"]]
    assert results[0][0] != results[1][0]


async def test_rule_19_a_forever_key_of_an_ended_instance_is_a_duplicate(make_harness: MakeHarness) -> None:
    """Rule 19: there is no instance to signal and none can start: Duplicate, with the id of the holder."""
    h = await make_harness([Cart])
    ended = await h.engine.start(Cart, {"size": 0}, key="cart:7", key_scope="forever")
    async with h.engine.worker():
        await ended.result(30)

    with pytest.raises(Duplicate) as caught:
        await h.engine.signal_or_start(Cart, {"size": 1}, key="cart:7", signal="item")

    assert caught.value.id == ended.id
    assert await count(h, "signals") == 0


async def test_rule_19_each_tenant_has_its_own_instance(make_harness: MakeHarness) -> None:
    """Rules 18 and 19: the same key of two tenants is two instances."""
    h = await make_harness([Waiter])

    handles = [
        await h.engine.signal_or_start(Waiter, key="order:42", signal="go", tenant=tenant) for tenant in ("a", "b", "a")
    ]
    tenants = [(await handle.get()).tenant for handle in handles]

    assert (handles[0].id, tenants) == (handles[2].id, ["a", "b", "a"])
    assert await count(h, "instances") == 2


async def test_rule_19_bad_input_starts_and_signals_nothing(make_harness: MakeHarness) -> None:
    """Rule 19: refused, whichever half it belongs to; the holder gets no signal either."""
    h = await make_harness([Waiter])
    holder = await h.engine.start(Waiter, key="taken")
    bad: list[dict[str, Any]] = [
        {"key": ""}, {"key": None}, {"key": 5}, {"signal": ""}, {"signal": "x\x00"}, {"payload": float("inf")},
        {"dedup_key": ""}, {"state": {"names": 5}}, {"tenant": 5}, {"machine": "Wiater"},
    ]  # fmt: skip

    for change in bad:
        for key in ("taken", "free"):
            call = {"machine": Waiter, "state": None, "key": key, "signal": "go", **change}
            with pytest.raises(InvalidInput):
                await h.engine.signal_or_start(**call)
    with pytest.raises(UnknownMachine, match="did you mean 'Waiter'"):
        await h.engine.signal_or_start("Wiater", key="taken", signal="go")

    assert (await holder.get()).status is Status.RUNNABLE
    assert (await count(h, "instances"), await count(h, "signals")) == (1, 0)
