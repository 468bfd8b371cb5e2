"""Rule 18: get, wait and the operator's calls take the live occupant of a key, else the newest that carried it."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import InvalidInput, NotFound, Status
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.signals.machines import Item, Waiter


async def two_ended(h: Harness) -> list[int]:
    """Two ended instances that carried the same key, one after the other."""
    ids = []
    async with h.engine.worker():
        for number in (1, 2):
            item = await h.engine.start(Item, {"number": number}, key="item")
            await item.result(30)
            ids.append(item.id)
    return ids


async def test_rule_18_get_and_wait_find_the_newest_if_no_instance_is_live(make_harness: MakeHarness) -> None:
    """Rule 18, Scenario 169: a finished instance is found by its key; the newest of them."""
    h = await make_harness([Item])
    _, second = await two_ended(h)

    found, waited = await h.engine.get("item"), await h.engine.wait("item", timeout=30)

    assert (found.id, waited.id, waited.result) == (second, second, 4)


async def test_rule_18_get_and_wait_find_the_live_occupant(make_harness: MakeHarness) -> None:
    """Rule 18: a live occupant is preferred to all that carried the key."""
    h = await make_harness([Item, Waiter])
    await two_ended(h)
    live = await h.engine.start(Waiter, key="item")

    async with h.engine.worker():
        parked = await h.engine.wait("item", timeout=30, until="settled")

    assert (parked.id, (await h.engine.get("item")).id) == (live.id, live.id)


async def test_rule_18_a_retried_older_occupant_is_the_live_one(make_harness: MakeHarness) -> None:
    """Rule 18: the live one is found even if a newer one has ended."""
    h = await make_harness([Item])
    first, second = await two_ended(h)

    await h.engine.restart(first, step=Item.work, state={"number": 7, "ends": "parked"})
    found = await h.engine.get("item")

    assert (found.id, found.state["number"], first < second) == (first, 7, True)


async def test_rule_31_cancel_retry_and_restart_take_keys(make_harness: MakeHarness) -> None:
    """Rule 31: the operator's calls take an id or a key, of the engine's or the given tenant."""
    h = await make_harness([Item])
    item = await h.engine.start(Item, {"number": 3}, key="item", tenant="acme")

    cancelled = await h.engine.cancel("item", tenant="acme")
    retried = await h.engine.retry("item", tenant="acme")
    await h.engine.restart("item", step="finish", tenant="acme")
    found = await item.get()

    assert (cancelled, retried, found.step, found.status) == (True, True, "finish", Status.RUNNABLE)


async def test_rule_31_an_unknown_target_is_not_found(make_harness: MakeHarness) -> None:
    """Rule 31: get, wait, cancel, retry and restart of an unknown target: NotFound."""
    h = await make_harness([Item])
    unknown: list[int | str] = [999, 0, -5, 2**63, "nobody"]

    for target in unknown:
        for call in (h.engine.get, h.engine.wait, h.engine.cancel, h.engine.retry):
            with pytest.raises(NotFound):
                await call(target)
        with pytest.raises(NotFound):
            await h.engine.restart(target, step="work")


async def test_rule_31_a_target_of_a_wrong_type_is_refused(make_harness: MakeHarness) -> None:
    """Rule 31: neither an id nor a key: refused by each call."""
    h = await make_harness([Item])
    engine = h.engine
    wrong: list[Any] = [None, True, 1.5, b"key", ["key"], "", "x" * 201, "a\x00", "\ud800"]

    for target in wrong:
        for call in (engine.get, engine.wait, engine.cancel, engine.retry):
            with pytest.raises(InvalidInput):
                await call(target)
        with pytest.raises(InvalidInput):
            await engine.restart(target, step="work")
        with pytest.raises(InvalidInput):
            await engine.signal(target, "go")
