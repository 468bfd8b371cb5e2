"""Rules 11, 14 and 15 for batches: many signals in one transaction, with results in their order."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Await, Context, Done, Handle, InvalidInput, Machine, NoTarget, Status, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import count, inbox
from tests.features.signals.machines import Waiter, told


class Pack(Machine, initial="collect"):
    """Is done once it has the three of them."""

    @step
    async def collect(self, ctx: Context[Any]) -> Await | Done:
        return Done(told(ctx.awaited)) if len(ctx.awaited) == 3 else Await("a", "b", then=self.collect)


async def test_rule_15_results_of_signal_many_are_in_order_including_no_target(make_harness: MakeHarness) -> None:
    """Rule 15: None if it was delivered, a NoTarget (not raised) if there was no target."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")

    results = await h.engine.signal_many(
        [(waiter.id, "go"), (999, "go"), ("order:42", "go", 2), ("nobody", "go", 3), (0, "go"), (2**70, "go"),
         (waiter.id, "go", 4, "evt-7"), (waiter.id, "go", 5, "evt-7")]
    )  # fmt: skip

    assert [item and item.target for item in results] == [None, 999, None, "nobody", 0, 2**70, None, None]
    assert all(isinstance(item, NoTarget) for item in results if item is not None)
    assert await inbox(h, waiter.id) == [("go", False)] * 3


async def test_rule_11_signals_to_one_instance_arrive_in_the_order_of_the_list(make_harness: MakeHarness) -> None:
    """Rule 11: the order of the entries is the order of arrival."""
    h = await make_harness([Pack])
    pack = await h.engine.start(Pack, key="order:42")

    async with h.engine.worker():
        await pack.wait(30, until="settled")
        await h.engine.signal_many([("order:42", "b", 1), (pack.id, "a", 2), ("order:42", "b", 3)])
        result = await pack.result(30)

    assert result == [["b", 1], ["a", 2], ["b", 3]]


BAD: list[tuple[Any, str]] = [
    (("order:42",), "entries[1]"),
    (("order:42", "go", 1, None, "more"), "entries[1]"),
    ("order:42", "entries[1]"),
    (("order:42", ""), "name"),
    (("order:42", "go", float("nan")), "payload"),
    ((True, "go"), "target"),
    (("order:42", "go", 1, ""), "dedup_key"),
]


async def test_rule_15_one_bad_entry_refuses_the_whole_batch(make_harness: MakeHarness) -> None:
    """Rule 15: a batch with bad input stores nothing at all, and says which entry it was."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")

    for bad, field in BAD:
        with pytest.raises(InvalidInput) as caught:
            await h.engine.signal_many([(waiter.id, "go"), bad])
        assert caught.value.field == field
        assert "entries[1]" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))

    assert await count(h, "signals") == 0


async def test_rule_15_a_batch_that_is_not_a_list_is_refused(make_harness: MakeHarness) -> None:
    """Rule 15: refused with the name of the field."""
    h = await make_harness([Waiter])
    wrong: list[Any] = [None, "go", {"order:42": "go"}, 5]

    for entries in wrong:
        with pytest.raises(InvalidInput, match="entries: expected a list"):
            await h.engine.signal_many(entries)


async def test_rule_11_an_empty_list_of_signals_is_accepted(make_harness: MakeHarness) -> None:
    """Rule 11: an empty batch is empty."""
    h = await make_harness([Waiter])

    assert await h.engine.signal_many([]) == []


async def test_rule_11_signal_many_wakes_five_hundred_targets_and_they_run(make_harness: MakeHarness) -> None:
    """Rule 11: 500 targets in one call, each woken once with its own payload."""
    h = await make_harness([Waiter])
    waiters = [w for w in await h.engine.start_many([Waiter] * 500) if isinstance(w, Handle)]

    async with h.engine.worker():
        for waiter in waiters:
            await waiter.wait(30, until="settled")
        results = await h.engine.signal_many([(w.id, "go", n) for n, w in enumerate(waiters)])
        ended = [await waiter.wait(30) for waiter in waiters]

    assert results == [None] * 500
    assert [(one.status, one.result) for one in ended] == [(Status.DONE, [["go", n]]) for n in range(500)]
