"""Rule 20: a batch start deduplicates against the table and within itself, and never deadlocks."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import Duplicate, Handle, InvalidInput, InvalidState
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Waiter


def shown(started: list[Handle | Duplicate]) -> list[tuple[str, int]]:
    return [(type(one).__name__, one.id) for one in started]


async def test_rule_20_a_batch_reports_which_entries_were_duplicates(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 73: of in-batch and existing duplicates only new keys are inserted, each reported in place."""
    h = await make_harness([Waiter, Item])
    there = await h.engine.start(Waiter, key="b")

    started = await h.engine.start_many(
        [Waiter.child(key="a"), Item.child(key="b"), (Waiter, None), Item.child(key="a"), Waiter.child(key="c")]
    )

    first, third, fifth = started[0].id, started[2].id, started[4].id
    assert shown(started) == [
        ("Handle", first), ("Duplicate", there.id), ("Handle", third), ("Duplicate", first), ("Handle", fifth),
    ]  # fmt: skip
    assert [one.key for one in started] == ["a", "b", None, "a", "c"]
    assert await count(h, "instances") == await count(h, "instance_data") == 4


async def test_rule_20_the_first_entry_of_a_key_wins_within_a_batch(make_harness: MakeHarness) -> None:
    """Rule 20: of two entries with one key the first is inserted, with its state."""
    h = await make_harness([Item])

    first, second = await h.engine.start_many([Item.child({"number": n}, key="item") for n in (1, 2)])

    assert isinstance(second, Duplicate)
    assert (second.id, (await h.engine.get(first.id)).state["number"]) == (first.id, 1)


async def test_rule_20_a_batch_may_mix_tenants_and_scopes(make_harness: MakeHarness) -> None:
    """Rules 18 and 20: the same key in two tenants, for ever, and without a scope."""
    h = await make_harness([Item])

    started = await h.engine.start_many(
        [
            Item.child(key="a"), Item.child(key="a", tenant="acme"), Item.child(key="a", key_scope="forever"),
            Item.child(key="a", key_scope=None), Item.child(key="a", key_scope=None),
        ]
    )  # fmt: skip

    assert [type(one).__name__ for one in started] == ["Handle", "Handle", "Duplicate", "Handle", "Handle"]


async def test_rule_20_two_batches_in_opposite_order_do_not_deadlock(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 74: the same new keys in opposite order at the same time: no error, each key once."""
    h = await make_harness([Item])
    keys = [f"item:{n}" for n in range(300)]

    batches = await asyncio.gather(
        *(h.engine.start_many([Item.child(key=k) for k in (keys, keys[::-1])[n % 2]]) for n in range(8))
    )

    handles = [one for batch in batches for one in batch if isinstance(one, Handle)]
    assert sorted(str(handle.key) for handle in handles) == sorted(keys)
    assert await count(h, "instances") == 300
    assert all(
        one.id == {h.key: h.id for h in handles}[one.key]
        for batch in batches for one in batch if isinstance(one, Duplicate)
    )  # fmt: skip


async def test_rule_20_a_batch_of_six_thousand_keys_is_one_transaction(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 75: 6,000 rows, more than one statement takes, and all results at their positions."""
    h = await make_harness([Item])
    await h.engine.start(Item, key="item:17")

    started = await h.engine.start_many([Item.child({"number": n}, key=f"item:{n}") for n in range(6_000)])

    duplicates = [n for n, one in enumerate(started) if isinstance(one, Duplicate)]
    assert (duplicates, await count(h, "instances")) == ([17], 6_000)
    assert [one.key for one in started] == [f"item:{n}" for n in range(6_000)]
    assert (await h.engine.get("item:5999")).id == started[5_999].id


async def test_rule_20_an_empty_batch_starts_nothing(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 76: an empty batch gives an empty result."""
    h = await make_harness([Item])

    assert await h.engine.start_many([]) == []


async def test_rule_20_one_bad_entry_refuses_the_whole_batch(make_harness: MakeHarness) -> None:
    """Rule 20: all or nothing: bad input in one entry starts none, and names its place."""
    h = await make_harness([Item])
    bad = [
        Item.child({"number": "one"}), Item.child(key=""), Item.child(key="x" * 201), Item.child(key="a\x00"),
        Item.child(key=5), Item.child(key="a", key_scope="runnable"), Item.child(version=9), Item.child(tenant=5),
    ]  # fmt: skip

    for entry in bad:
        with pytest.raises(InvalidInput) as caught:
            await h.engine.start_many([Item.child(key="good"), entry])
        assert "in entries[1]" in caught.value.__notes__
    with pytest.raises(InvalidState, match=r"state\.number: expected int, got str"):
        await h.engine.start_many([Item.child(key="good"), bad[0]])

    assert await count(h, "instances") == 0


async def test_rule_20_a_started_batch_runs(make_harness: MakeHarness) -> None:
    """Rule 20: inserted rows are notified to the workers; duplicates change nothing."""
    h = await make_harness([Item])

    async with h.engine.worker():
        started = await h.engine.start_many([Item.child({"number": n}, key=f"item:{n % 3}") for n in range(5)])
        results = [await one.result(30) for one in started if isinstance(one, Handle)]

    assert results == [0, 2, 4]
