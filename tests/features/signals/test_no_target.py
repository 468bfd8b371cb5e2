"""Rule 15: a signal without a target raises NoTarget and stores nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Await, Context, Done, Machine, NoTarget, Status, Stop, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Waiter


class Ender(Machine):
    """Ends as its state says."""

    @step
    async def start(self, ctx: Context[Any]) -> Done | Stop | Await:
        match ctx.state["ends"]:
            case "done":
                return Done()
            case "failed":
                return Stop("no luck")
            case _:
                return Await("go", then=self.start)


async def test_rule_15_a_signal_to_an_unknown_target_raises(make_harness: MakeHarness) -> None:
    """Rule 15, Scenarios 29 and 30: a missing id or an unknown key is NoTarget, and nothing is stored."""
    h = await make_harness([Ender])
    unknown: list[int | str] = [1, 999_999, 0, -1, 2**63 - 1, 2**63, 2**100, "order:42"]

    for target in unknown:
        with pytest.raises(NoTarget) as caught:
            await h.engine.signal(target, "go")
        assert caught.value.target == target

    assert await count(h, "signals") == 0


async def test_rule_15_a_signal_to_an_ended_target_raises_by_id_and_by_key(make_harness: MakeHarness) -> None:
    """Rule 15, Scenarios 29 and 30: done, failed or cancelled, by id or by its freed key: NoTarget, nothing stored."""
    h = await make_harness([Ender])
    ends = [await h.engine.start(Ender, {"ends": e}, key=e) for e in ("done", "failed", "cancelled")]
    async with h.engine.worker():
        await ends[2].wait(30, until="settled")
        await ends[2].cancel()
        statuses = [(await ended.wait(30)).status for ended in ends]

    for ended in ends:
        for target in (ended.id, str(ended.key)):
            with pytest.raises(NoTarget, match="nobody to signal"):
                await h.engine.signal(target, "go")

    assert statuses == [Status.DONE, Status.FAILED, Status.CANCELLED]
    assert await count(h, "signals") == 0


async def test_rule_15_an_ended_holder_of_a_forever_key_is_no_target(make_harness: MakeHarness) -> None:
    """Rule 15, Scenario 71: a key of scope forever stays taken, but its instance reads no inbox."""
    h = await make_harness([Ender])
    ended = await h.engine.start(Ender, {"ends": "done"}, key="order:42", key_scope="forever")
    async with h.engine.worker():
        await ended.result(30)

    with pytest.raises(NoTarget):
        await h.engine.signal("order:42", "go")

    assert await count(h, "signals") == 0


async def test_rule_15_a_signal_of_another_tenant_finds_no_target(make_harness: MakeHarness) -> None:
    """Rule 15: a key is an address within its tenant."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42", tenant="acme")

    with pytest.raises(NoTarget):
        await h.engine.signal("order:42", "go")
    await h.engine.signal("order:42", "go", "for acme", tenant="acme")
    async with h.engine.worker():
        result = await waiter.result(30)

    assert result == [["go", "for acme"]]


async def test_rule_15_a_signal_during_the_last_commit_is_stored_or_refused(make_harness: MakeHarness) -> None:
    """Rule 15, Scenario 39: sent while Done is about to commit: delivered before it, refused after it."""
    h = await make_harness([Ender])
    ending = await h.engine.start(Ender, {"ends": "done"}, key="order:42")

    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker():
            await committing.reached()
            await ending.signal("go")
            before = await count(h, "signals")
            committing.release()
            await ending.result(30)
            with pytest.raises(NoTarget):
                await ending.signal("go")

    assert before == 1
    assert await count(h, "signals") == 0


async def test_rule_15_the_successor_of_a_key_receives_signals_sent_after_the_end(make_harness: MakeHarness) -> None:
    """Rule 15: a signal by key reaches the successor that now holds the key."""
    h = await make_harness([Ender, Waiter])
    first = await h.engine.start(Ender, {"ends": "done"}, key="order:42")

    async with h.engine.worker():
        await first.result(30)
        second = await h.engine.start(Waiter, key="order:42")
        await h.engine.signal("order:42", "go", "for the second")
        result = await second.result(30)

    assert result == [["go", "for the second"]]


async def test_rule_15_signals_racing_the_end_all_report_the_truth(make_harness: MakeHarness) -> None:
    """Rule 15: of many signals that race one Done, each is refused, or was there before the end."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.engine.worker():
        results = await asyncio.gather(*(waiter.signal("go", n) for n in range(30)), return_exceptions=True)
        await waiter.wait(30)

    assert {type(one) for one in results} <= {type(None), NoTarget}
    assert results.count(None) >= 1
    assert await count(h, "signals") == 0
