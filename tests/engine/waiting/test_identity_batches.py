"""Rule 20: a batch start deduplicates against the table and within itself, and deadlocks with nobody."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import Duplicate, Handle, InvalidInput, InvalidState
from tests.conftest import MakeHarness
from tests.engine.waiting.looks import count
from tests.engine.waiting.machines import Item, Waiter


def shown(answers: list[Handle | Duplicate]) -> list[tuple[str, int]]:
    return [(type(answer).__name__, answer.id) for answer in answers]


async def test_rule_20_a_batch_tells_which_entries_were_duplicates(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 73: of in-batch and existing duplicates only the new keys are inserted, each told in place."""
    h = await make_harness([Waiter, Item])
    there = await h.engine.start(Waiter, key="b")

    answers = await h.engine.start_many(
        [Waiter.child(key="a"), Item.child(key="b"), (Waiter, None), Item.child(key="a"), Waiter.child(key="c")]
    )

    first, third, fifth = answers[0].id, answers[2].id, answers[4].id
    assert shown(answers) == [
        ("Handle", first), ("Duplicate", there.id), ("Handle", third), ("Duplicate", first), ("Handle", fifth),
    ]  # fmt: skip
    assert [answer.key for answer in answers] == ["a", "b", None, "a", "c"]
    assert await count(h, "instances") == await count(h, "instance_data") == 4


async def test_rule_20_within_a_batch_the_first_of_a_key_stands(make_harness: MakeHarness) -> None:
    """Rule 20: of two entries with one key the first is inserted, with its state."""
    h = await make_harness([Item])

    first, second = await h.engine.start_many([Item.child({"number": n}, key="item") for n in (1, 2)])

    assert isinstance(second, Duplicate)
    assert (second.id, (await h.engine.get(first.id)).state["number"]) == (first.id, 1)


async def test_rule_20_tenants_and_scopes_meet_in_one_batch(make_harness: MakeHarness) -> None:
    """Rules 18 and 20: the same key in two tenants, for ever, and without a scope."""
    h = await make_harness([Item])

    answers = await h.engine.start_many(
        [
            Item.child(key="a"), Item.child(key="a", tenant="acme"), Item.child(key="a", key_scope="forever"),
            Item.child(key="a", key_scope=None), Item.child(key="a", key_scope=None),
        ]
    )  # fmt: skip

    assert [type(answer).__name__ for answer in answers] == ["Handle", "Handle", "Duplicate", "Handle", "Handle"]


async def test_rule_20_two_batches_in_opposite_order_do_not_deadlock(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 74: the same new keys in opposite order at the same time: no error, each key once."""
    h = await make_harness([Item])
    keys = [f"item:{n}" for n in range(300)]

    batches = await asyncio.gather(
        *(h.engine.start_many([Item.child(key=k) for k in (keys, keys[::-1])[n % 2]]) for n in range(8))
    )

    handles = [answer for batch in batches for answer in batch if isinstance(answer, Handle)]
    assert sorted(str(handle.key) for handle in handles) == sorted(keys)
    assert await count(h, "instances") == 300
    assert all(
        answer.id == {h.key: h.id for h in handles}[answer.key]
        for batch in batches for answer in batch if isinstance(answer, Duplicate)
    )  # fmt: skip


async def test_rule_20_a_batch_of_six_thousand_keys_is_one_transaction(make_harness: MakeHarness) -> None:
    """Rule 20, Scenario 75: 6,000 rows, more than one statement takes, and all answers at their places."""
    h = await make_harness([Item])
    await h.engine.start(Item, key="item:17")

    answers = await h.engine.start_many([Item.child({"number": n}, key=f"item:{n}") for n in range(6_000)])

    duplicates = [n for n, answer in enumerate(answers) if isinstance(answer, Duplicate)]
    assert (duplicates, await count(h, "instances")) == ([17], 6_000)
    assert [answer.key for answer in answers] == [f"item:{n}" for n in range(6_000)]
    assert (await h.engine.get("item:5999")).id == answers[5_999].id


async def test_rule_20_an_empty_batch_is_empty(make_harness: MakeHarness) -> None:
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
    """Rule 20: what was inserted is announced to the workers; what was a duplicate changes nothing."""
    h = await make_harness([Item])

    async with h.engine.worker():
        answers = await h.engine.start_many([Item.child({"number": n}, key=f"item:{n % 3}") for n in range(5)])
        results = [await answer.result(30) for answer in answers if isinstance(answer, Handle)]

    assert results == [0, 2, 4]
