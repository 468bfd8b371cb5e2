"""Rules 11, 12 and 16: a signal is a row in the inbox before anyone is woken, whatever its payload."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from stepwell import Await, Context, Done, Machine, Next, Status, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox
from tests.features.signals.machines import Waiter, told


async def test_rule_11_a_signal_by_id_wakes_an_instance_that_awaits_its_name(make_harness: MakeHarness) -> None:
    """Rule 11, Scenario 23: awaiting "go", signal go: woken with the payload in ctx.awaited."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.engine.worker():
        parked = await waiter.wait(30, until="settled")
        await h.engine.signal(waiter.id, "go", {"amount": 100})
        result = await waiter.result(30)

    assert (parked.status, parked.step, parked.awaits) == (Status.AWAITING_SIGNAL, "woken", ("go",))
    assert result == [["go", {"amount": 100}]]


async def test_rule_11_a_woken_instance_is_runnable_and_keeps_its_awaited_names(make_harness: MakeHarness) -> None:
    """Rule 11, Scenario 23: after the signal it is runnable, its awaits still set, its deadline cleared."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    async with h.engine.worker():
        await waiter.wait(30, until="settled")

    await waiter.signal("go")
    woken = await waiter.get()

    assert (woken.status, woken.awaits, woken.attempt, woken.deadline) == (Status.RUNNABLE, ("go",), 0, None)


async def test_rule_18_a_signal_by_key_reaches_the_live_occupant(make_harness: MakeHarness) -> None:
    """Rule 18: the key is an address for signals."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")

    async with h.engine.worker():
        await h.engine.signal("order:42", "go", 1)
        result = await waiter.result(30)

    assert result == [["go", 1]]


async def test_rule_11_a_handle_signals_its_instance(make_harness: MakeHarness) -> None:
    """Rule 11: handle.signal does the same."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.engine.worker():
        await waiter.signal("go", "by handle", dedup_key="evt-1")
        await waiter.signal("go", "again", dedup_key="evt-1")
        result = await waiter.result(30)

    assert result == [["go", "by handle"]]


async def test_rule_12_another_name_does_not_wake_and_stays_in_the_inbox(make_harness: MakeHarness) -> None:
    """Rule 12, Scenario 24: awaiting go, signal other: it stays parked and keeps the other."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    async with h.engine.worker():
        await waiter.wait(30, until="settled")

    await waiter.signal("other")
    still = await waiter.get()

    assert still.status is Status.AWAITING_SIGNAL
    assert await inbox(h, waiter.id) == [("other", False)]


async def test_rule_11_a_signal_before_the_first_step_is_not_lost(make_harness: MakeHarness) -> None:
    """Rule 11, Scenarios 25 and 37: sent to a runnable instance it is stored, and the await ends at once."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    await waiter.signal("go", "early")
    before = await waiter.get()

    async with h.engine.worker() as worker:
        result = await waiter.result(30)

    assert (before.status, before.step) == (Status.RUNNABLE, "wait")
    assert (result, worker.stats.steps) == ([["go", "early"]], 2)


async def test_rule_11_a_signal_while_the_step_runs_wakes_its_park(make_harness: MakeHarness) -> None:
    """Rule 11, Scenarios 26 and 37: sent to an executing instance it changes no status, and the park sees it."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Slow(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            entered.set()
            await gate.wait()
            return Await("go", then=self.woken)

        @step
        async def woken(self, ctx: Context[Any]) -> Done:
            return Done(told(ctx.awaited))

    h = await make_harness([Slow])
    slow = await h.engine.start(Slow)

    async with h.engine.worker():
        await entered.wait()
        await slow.signal("go", "meanwhile")
        meanwhile = await slow.get()
        gate.set()
        result = await slow.result(30)

    assert meanwhile.status is Status.EXECUTING
    assert result == [["go", "meanwhile"]]


PAYLOADS: list[Any] = [
    None, [1, "two", None], "words", "", 3, 2.5, True, {}, [], {"a": {"b": [{"c": "ü\U0001f600"}]}}, -(10**30),
]  # fmt: skip


async def test_rule_16_a_payload_is_any_json_value(make_harness: MakeHarness) -> None:
    """Rule 16, Scenario 41: a list, a string, a number or null is delivered unchanged."""
    h = await make_harness([Waiter])
    waiters = await h.engine.start_many([Waiter] * len(PAYLOADS))
    await h.engine.signal_many([(w.id, "go", payload) for w, payload in zip(waiters, PAYLOADS, strict=True)])

    async with h.engine.worker():
        results = [(await h.engine.wait(waiter.id, timeout=30)).result for waiter in waiters]

    assert results == [[["go", payload]] for payload in PAYLOADS]


async def test_rule_12_inbox_has_all_signals_and_awaited_the_matching_in_order(make_harness: MakeHarness) -> None:
    """Rule 12: ctx.awaited is the matched subset in arrival order, ctx.inbox is all."""

    class Reader(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("b", "a", then=self.read)

        @step
        async def read(self, ctx: Context[Any]) -> Done:
            return Done({"awaited": told(ctx.awaited), "inbox": told(ctx.inbox)})

    h = await make_harness([Reader])
    reader = await h.engine.start(Reader)
    for number, name in enumerate(["a", "x", "b", "a"]):
        await reader.signal(name, number)

    async with h.engine.worker():
        result = await reader.result(30)

    assert result == {
        "awaited": [["a", 0], ["b", 2], ["a", 3]],
        "inbox": [["a", 0], ["x", 1], ["b", 2], ["a", 3]],
    }


async def test_rule_12_a_step_that_awaited_nothing_sees_the_inbox_and_no_awaited(make_harness: MakeHarness) -> None:
    """Rule 12: a step may read its inbox without an await; that consumes nothing."""

    class Looker(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            return Next(self.look, state={"seen": told(ctx.inbox), "awaited": told(ctx.awaited)})

        @step
        async def look(self, ctx: Context[Any]) -> Done:
            return Done([ctx.state, told(ctx.inbox)])

    h = await make_harness([Looker])
    looker = await h.engine.start(Looker)
    await looker.signal("note", 1)

    async with h.engine.worker():
        result = await looker.result(30)

    assert result == [{"seen": [["note", 1]], "awaited": []}, [["note", 1]]]


async def test_rule_11_a_share_lock_of_another_session_does_not_stop_a_claim(make_harness: MakeHarness) -> None:
    """Scenario 38: another session holds KEY SHARE on the row: it is signalled, claimed and committed all the same."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    connection = await asyncpg.connect(h.url)

    async with connection.transaction(), h.engine.worker():
        await connection.execute("select from stepwell.instances for key share")
        await waiter.signal("go", 1)
        result = await waiter.result(30)
    await connection.close()

    assert result == [["go", 1]]


async def test_rule_11_a_signal_wakes_a_worker_of_another_engine(make_harness: MakeHarness) -> None:
    """Rule 11: sender and worker may be two engines; with long polls only the notification can have woken it."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.another_engine() as other, other.worker():
        await waiter.wait(30, until="settled")
        await waiter.signal("go", "from afar")
        result = await waiter.result(30)

    assert result == [["go", "from afar"]]
