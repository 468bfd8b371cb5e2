"""Rule 18: a key of scope "forever" is never free again, also after pruning; a tombstone stays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell import Duplicate, Handle, NoTarget, NotFound
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Item, Order, Waiter

DAY = timedelta(days=1)


async def finished(h: Harness, key: str = "item:1") -> Handle:
    """An ended instance that keeps its forever key."""
    item = await h.engine.start(Item, {"number": 1}, key=key, key_scope="forever")
    async with h.engine.worker():
        await item.result(30)
    return item


async def prune(h: Harness) -> None:
    """Let a worker prune once, two days later."""
    await h.advance(2 * DAY)
    with armed("pruner.pruned") as pruned:
        async with h.engine.worker():
            await pruned.reached()


async def test_rule_18_a_forever_key_stays_taken_after_the_end(make_harness: MakeHarness) -> None:
    """Rule 18, Scenario 71: finished, still a duplicate; if_exists="return" still finds its result."""
    h = await make_harness([Item])
    item = await finished(h)

    with pytest.raises(Duplicate) as caught:
        await h.engine.start(Item, key="item:1")
    again = await h.engine.start(Item, {"number": 9}, key="item:1", if_exists="return")

    assert caught.value.id == item.id
    assert await again.result(30) == 2


async def test_rule_18_a_forever_key_stays_taken_after_pruning(make_harness: MakeHarness) -> None:
    """Rule 18, Scenario 71: pruned, and the key stays taken: the tombstone names the instance that had it."""
    h = await make_harness([Item])
    item = await finished(h)

    await prune(h)
    with pytest.raises(Duplicate) as caught:
        await h.engine.start(Item, key="item:1")
    [duplicate, other] = await h.engine.start_many([Item.child(key="item:1"), Item.child(key="item:2")])

    assert (caught.value.id, duplicate.id) == (item.id, item.id)
    assert isinstance(other, Handle)
    assert (await count(h, "tombstones"), await count(h, "instances")) == (1, 1)


async def test_rule_18_a_tombstone_is_found_by_no_read(make_harness: MakeHarness) -> None:
    """Rule 18: after pruning there is nothing to get, wait for or signal. Scenario 159."""
    h = await make_harness([Item])
    item = await finished(h)

    await prune(h)
    with pytest.raises(NotFound):
        await h.engine.get("item:1")
    with pytest.raises(NotFound):
        await item.wait(1)
    with pytest.raises(NoTarget):
        await h.engine.signal("item:1", "go")


async def test_rule_18_a_live_key_leaves_no_tombstone(make_harness: MakeHarness) -> None:
    """Rule 18: only keys taken for ever are remembered."""
    h = await make_harness([Item])
    item = await h.engine.start(Item, key="item:1")
    async with h.engine.worker():
        await item.result(30)

    await prune(h)
    again = await h.engine.start(Item, key="item:1")

    assert (again.key, await count(h, "tombstones")) == ("item:1", 0)


async def test_rule_18_a_tombstone_belongs_to_its_tenant(make_harness: MakeHarness) -> None:
    """Rule 18: the same key of another tenant is free."""
    h = await make_harness([Item])
    await finished(h)

    await prune(h)
    other = await h.engine.start(Item, key="item:1", tenant="acme")

    assert (await other.get()).tenant == "acme"


async def test_rule_18_a_tombstone_refuses_a_start_of_another_scope_too(make_harness: MakeHarness) -> None:
    """Rule 18: never again, whatever scope the next one asks for; without a scope a key is no key."""
    h = await make_harness([Item, Waiter])
    await finished(h)

    await prune(h)
    for scope in ("live", "forever"):
        with pytest.raises(Duplicate):
            await h.engine.start(Waiter, key="item:1", key_scope=scope)
    unscoped = await h.engine.start(Waiter, key="item:1", key_scope=None)

    assert (await unscoped.get()).machine == "Waiter"


async def test_rule_18_a_child_with_the_key_of_a_tombstone_is_a_duplicate(make_harness: MakeHarness) -> None:
    """Rules 5 and 18: a spawn leaves such a child out, as it does one of a live key."""
    h = await make_harness([Item, Order])
    await finished(h)

    await prune(h)
    items, options = [{"number": 1}, {"number": 2}], [{"key": "item:1"}, {"key": "item:2"}]
    order = await h.engine.start(Order, {"items": items, "options": options})
    async with h.engine.worker():
        result = await order.result(30)

    assert result == [[1, "done", 4]]


async def test_rule_19_if_exists_return_gives_the_handle_of_a_pruned_instance(make_harness: MakeHarness) -> None:
    """Rules 18 and 19: the handle names the instance that had the key; its result is no longer known."""
    h = await make_harness([Item])
    item = await finished(h)

    await prune(h)
    handle = await h.engine.start(Item, key="item:1", if_exists="return")

    assert handle.id == item.id
    with pytest.raises(NotFound):
        await handle.get()
