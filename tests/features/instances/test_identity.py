"""Rules 18 and 19: a key is the business identity within a tenant: unique, and an address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Duplicate, Handle, InvalidInput, NoTarget, NotFound, Status
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Waiter


async def test_rule_19_a_start_on_an_occupied_key_raises_with_the_occupants_id(make_harness: MakeHarness) -> None:
    """Rules 18 and 19, Scenario 69: a live key, a second start: Duplicate, with the occupant's id."""
    h = await make_harness([Waiter])
    occupant = await h.engine.start(Waiter, key="order:42")

    with pytest.raises(Duplicate) as caught:
        await h.engine.start(Waiter, key="order:42")

    assert (caught.value.key, caught.value.id) == ("order:42", occupant.id)
    assert str(caught.value).startswith(f"key 'order:42' is occupied by instance {occupant.id}")
    assert await count(h, "instances") == await count(h, "instance_data") == 1


async def test_rule_19_if_exists_returns_the_occupants_handle(make_harness: MakeHarness) -> None:
    """Rule 19: if_exists="return" gives the handle of the occupant, or of the instance it starts."""
    h = await make_harness([Waiter])

    first = await h.engine.start(Waiter, {"names": ["go"]}, key="order:42", if_exists="return")
    second = await h.engine.start(Waiter, {"names": ["other"]}, key="order:42", if_exists="return")
    state = (await second.get()).state

    assert (first.id, first.key, state) == (second.id, second.key, {"names": ["go"]})


@pytest.mark.parametrize("ends", ["done", "failed", "cancelled"])
async def test_rule_18_a_live_key_is_free_after_the_end(make_harness: MakeHarness, ends: str) -> None:
    """Rule 18, Scenario 70: whatever the end was, the default scope frees the key."""
    h = await make_harness([Item])
    first = await h.engine.start(Item, {"number": 1, "ends": ends}, key="item:1")
    async with h.engine.worker():
        if ends == "cancelled":
            await first.cancel()
        ended = await first.wait(30)

    second = await h.engine.start(Item, {"number": 2}, key="item:1")

    assert (ended.status, second.id > first.id) == (Status(ends), True)


async def test_rule_18_a_key_is_occupied_in_every_live_status(make_harness: MakeHarness) -> None:
    """Rule 18: runnable, held, executing or parked: all of them occupy the key."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")
    statuses = ["runnable", "executing", "awaiting_signal", "awaiting_children"]

    for status in statuses:
        await h.sql(
            "update stepwell.instances set status = $1, awaits = '{go}', "
            "worker_id = case when $1 = 'executing' then 1 end",
            status,
        )
        with pytest.raises(Duplicate):
            await h.engine.start(Waiter, key="order:42")

    assert (await waiter.get()).status is Status.AWAITING_CHILDREN


async def test_rule_18_instances_without_a_key_never_conflict(make_harness: MakeHarness) -> None:
    """Rule 18, Scenario 72: without a key there is nothing to be unique."""
    h = await make_harness([Waiter])

    handles = [await h.engine.start(Waiter) for _ in range(3)]

    assert [handle.key for handle in handles] == [None] * 3
    assert await count(h, "instances") == 3


async def test_rule_18_scope_none_is_neither_unique_nor_an_address(make_harness: MakeHarness) -> None:
    """Rule 18: key_scope=None: two of one key side by side, reached by id only."""
    h = await make_harness([Waiter])

    first, second = [await h.engine.start(Waiter, key="order:42", key_scope=None) for _ in range(2)]
    with pytest.raises(NoTarget):
        await h.engine.signal("order:42", "go")
    with pytest.raises(NotFound):
        await h.engine.get("order:42")

    assert first.id != second.id
    assert await count(h, "instances") == 2


async def test_rule_18_scope_none_does_not_block_a_live_key(make_harness: MakeHarness) -> None:
    """Rule 18: a key of scope None occupies nothing."""
    h = await make_harness([Waiter])
    await h.engine.start(Waiter, key="order:42", key_scope=None)

    live = await h.engine.start(Waiter, key="order:42")
    after = await h.engine.start(Waiter, key="order:42", key_scope=None)

    assert (await h.engine.get("order:42")).id == live.id != after.id


async def test_rule_18_tenants_have_their_own_keys(make_harness: MakeHarness) -> None:
    """Rule 18: unique within a tenant; the engine's own tenant is the default of every call."""
    h = await make_harness([Waiter])
    async with h.another_engine(tenant="acme") as acme:
        ours = await h.engine.start(Waiter, key="order:42")
        theirs = await acme.start(Waiter, key="order:42")
        third = await h.engine.start(Waiter, key="order:42", tenant="third")

        found = [await h.engine.get("order:42"), await acme.get("order:42"), await acme.get("order:42", tenant="third")]
        with pytest.raises(Duplicate) as caught:
            await h.engine.start(Waiter, key="order:42", tenant="acme")

    assert [instance.id for instance in found] == [ours.id, theirs.id, third.id]
    assert [instance.tenant for instance in found] == ["", "acme", "third"]
    assert caught.value.id == theirs.id


async def test_rule_18_other_scopes_are_refused(make_harness: MakeHarness) -> None:
    """Rule 18, Scenario 77: with such keys, a returning row broke every batch that it was in."""
    h = await make_harness([Waiter])
    others: list[Any] = ["runnable", "done", "", "LIVE", ["live"], ("runnable", "done"), True, 5]

    for scope in others:
        with pytest.raises(InvalidInput) as caught:
            await h.engine.start(Waiter, key="order:42", key_scope=scope)
        assert caught.value.field == "key_scope"

    assert await count(h, "instances") == 0


async def test_rule_19_one_of_ten_concurrent_starts_wins_and_the_others_are_told(make_harness: MakeHarness) -> None:
    """Rule 19: ten starts of one key meet: one instance, nine Duplicates with its id."""
    h = await make_harness([Waiter])

    entries = await asyncio.gather(*(h.engine.start(Waiter, key="order:42") for _ in range(10)), return_exceptions=True)

    winners = [entry for entry in entries if isinstance(entry, Handle)]
    losers = [entry for entry in entries if isinstance(entry, Duplicate)]
    assert (len(winners), len(losers)) == (1, 9)
    assert {loser.id for loser in losers} == {winners[0].id}


async def test_rule_18_keys_are_compared_exactly(make_harness: MakeHarness) -> None:
    """Rule 18: case, spaces and accents count; a key of digits is a key, not an id."""
    h = await make_harness([Waiter])
    keys = ["a", "A", " a", "a ", "ä", "a\u0308", "1", "x" * 200, "\U0001f600", "%", "a\nb"]

    handles = [await h.engine.start(Waiter, key=key) for key in keys]
    found = [(await h.engine.get(key)).id for key in keys]

    assert found == [handle.id for handle in handles]
