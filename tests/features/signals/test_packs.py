"""Rules 4 and 13: awaiting again accumulates a pack, and never spins on signals that the step has already seen."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from stepwell import Await, Context, Done, Machine, Retry, Status, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox
from tests.features.signals.machines import told
from tests.support.waiting import eventually

NAMES = ["a", "b", "c"]


class Collect(Machine, initial="collect"):
    """The accumulating example of seed 000."""

    @step
    async def collect(self, ctx: Context[Any]) -> Await | Done:
        have = {signal.name for signal in ctx.awaited}
        if len(have) == len(NAMES):
            return Done({"sum": sum(signal.payload["v"] for signal in ctx.awaited)})
        return Await(*NAMES, then=self.collect)


class Watcher(Machine, initial="collect"):
    """Notes every run, and awaits again until it has "end"."""

    @step
    async def collect(self, ctx: Context[Any]) -> Await | Done:
        names = [signal.name for signal in ctx.awaited]
        ctx.resources.append(names)
        return Done(names) if "end" in names else Await("a", "b", "end", then=self.collect)


async def test_rule_13_a_pack_accumulates_by_awaiting_again(make_harness: MakeHarness) -> None:
    """Rule 13, Scenario 42: the example of seed 000: a, b, c delivered as b, a, c: done with the sum, inbox empty."""
    h = await make_harness([Collect])
    collect = await h.engine.start(Collect)

    async with h.engine.worker():
        for value, name in enumerate(["b", "a", "c"], start=1):
            await collect.signal(name, {"v": value})
        result = await collect.result(30)

    assert result == {"sum": 6}
    assert await inbox(h, collect.id) == []


async def test_rule_13_awaiting_again_without_new_signals_parks_and_does_not_spin(make_harness: MakeHarness) -> None:
    """Rule 13, Scenarios 43 and 44: after a it parks again; b wakes it with a and b; as many runs as signals."""
    runs: list[list[str]] = []
    h = await make_harness([Watcher], resources=runs)
    watcher = await h.engine.start(Watcher)

    async with h.engine.worker() as worker:
        for number, name in enumerate(["a", "b", "b"], start=2):
            await eventually(lambda n=number: worker.stats.committed == n - 1)  # type: ignore[misc]
            await watcher.signal(name)
            await eventually(lambda n=number: worker.stats.committed == n)  # type: ignore[misc]
        parked = await watcher.get()
        await watcher.signal("end")
        result = await watcher.result(30)

    assert (parked.status, result) == (Status.AWAITING_SIGNAL, ["a", "b", "b", "end"])
    assert runs == [[], ["a"], ["a", "b"], ["a", "b", "b"], ["a", "b", "b", "end"]]


async def test_rule_13_a_signal_during_a_step_over_the_pack_wakes_it_again(make_harness: MakeHarness) -> None:
    """Rules 11 and 13: a signal that the parking step did not see wakes its park, also one of the same name."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Slow(Machine, initial="collect"):
        @step
        async def collect(self, ctx: Context[Any]) -> Await | Done:
            if len(ctx.awaited) == 1:
                entered.set()
                await gate.wait()
            return Done(told(ctx.awaited)) if len(ctx.awaited) == 2 else Await("a", then=self.collect)

    h = await make_harness([Slow])
    slow = await h.engine.start(Slow)
    await slow.signal("a", 1)

    async with h.engine.worker() as worker:
        await entered.wait()
        await slow.signal("a", 2)
        gate.set()
        result = await slow.result(30)

    assert (result, worker.stats.steps) == ([["a", 1], ["a", 2]], 3)


async def test_rule_13_awaiting_other_names_passes_only_those_and_keeps_the_rest(make_harness: MakeHarness) -> None:
    """Rule 13, Scenario 46: awaiting again with other names: signals outside the set stay in the inbox."""

    class Changing(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("a", then=self.second)

        @step
        async def second(self, ctx: Context[Any]) -> Await:
            return Await("b", then=self.third)

        @step
        async def third(self, ctx: Context[Any]) -> Done:
            return Done({"awaited": told(ctx.awaited), "inbox": told(ctx.inbox)})

    h = await make_harness([Changing])
    changing = await h.engine.start(Changing)
    await h.engine.signal_many([(changing.id, "a", 1), (changing.id, "x", 2), (changing.id, "b", 3)])

    async with h.engine.worker():
        result = await changing.result(30)

    assert result == {"awaited": [["b", 3]], "inbox": [["a", 1], ["x", 2], ["b", 3]]}


async def test_rule_4_consume_drops_the_steps_signals_before_it_parks_again(make_harness: MakeHarness) -> None:
    """Rule 4: consume=True: a machine that awaits one name again and again receives each signal once."""
    seen: list[list[Any]] = []

    class Loop(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await | Done:
            seen.extend(told(ctx.awaited))
            return Done(len(seen)) if ["tick", "last"] in seen else Await("tick", then=self.start, consume=True)

    h = await make_harness([Loop])
    loop = await h.engine.start(Loop)

    async with h.engine.worker():
        for number in range(20):
            await loop.signal("tick", number)
        await loop.signal("tick", "last")
        result = await loop.result(30)

    assert result == 21
    assert seen == [["tick", number] for number in range(20)] + [["tick", "last"]]


async def test_rule_13_a_lower_signal_id_that_commits_after_a_higher_one_wakes(make_harness: MakeHarness) -> None:
    """Rule 13, Scenario 45: ids commit out of order; the seen ones are a set, not a watermark."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Pair(Machine, initial="collect"):
        @step
        async def collect(self, ctx: Context[Any]) -> Await | Done:
            if len(ctx.awaited) == 1:
                entered.set()
                await gate.wait()
            return Done(told(ctx.awaited)) if len(ctx.awaited) == 2 else Await("a", "b", then=self.collect)

    h = await make_harness([Pair])
    pair = await h.engine.start(Pair)
    connection = await asyncpg.connect(h.url)

    async with h.engine.worker():
        open_transaction = connection.transaction()
        await open_transaction.start()
        await connection.execute(
            "insert into stepwell.signals (instance_id, sent_at, name, payload) values ($1, now(), 'a', '1')", pair.id
        )
        await pair.signal("b", 2)
        await entered.wait()
        await open_transaction.commit()
        gate.set()
        result = await pair.result(30)
    await connection.close()

    assert result == [["a", 1], ["b", 2]]


async def test_rule_13_an_await_of_handle_does_not_spin(make_harness: MakeHarness) -> None:
    """Rules 7 and 13, Scenario 47: the step raises, handle awaits again: it parks until a new signal comes."""
    seen: list[list[str]] = []

    class Fragile(Machine, initial="collect"):
        @step
        async def collect(self, ctx: Context[Any]) -> Await | Done:
            names = [signal.name for signal in ctx.awaited]
            if not names:
                return Await("a", "end", then=self.collect)
            if "end" in names:
                return Done(names)
            raise LookupError

        async def handle(self, error: Exception, ctx: Context[Any]) -> Await:
            seen.append([signal.name for signal in ctx.awaited])
            return Await("a", "end", then=self.collect)

    h = await make_harness([Fragile])
    fragile = await h.engine.start(Fragile)
    await fragile.signal("a")

    async with h.engine.worker() as worker:
        await eventually(lambda: worker.stats.committed == 2)
        parked = await fragile.get()
        await fragile.signal("end")
        result = await fragile.result(30)

    assert (parked.status, seen, result) == (Status.AWAITING_SIGNAL, [["a"]], ["a", "end"])
    assert worker.stats.steps == 3


async def test_rule_3_a_retry_of_a_pack_sees_the_whole_pack_again(make_harness: MakeHarness) -> None:
    """Rule 3, Scenario 35: Retry consumes nothing and keeps what it awaited."""
    h = await make_harness([Retrying])
    retrying = await h.engine.start(Retrying)
    await h.engine.signal_many([(retrying.id, "a", 1), (retrying.id, "b", 2)])

    async with h.engine.worker():
        result = await retrying.result(30)

    assert result == [[["a", 1], ["b", 2]]] * 3


class Retrying(Machine):
    """Retries its woken step twice, and is done with the signals that it received each time."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("a", "b", then=self.woken)

    @step
    async def woken(self, ctx: Context[Any]) -> Retry | Done:
        ctx.state.setdefault("seen", []).append(told(ctx.awaited))
        return Done(ctx.state["seen"]) if ctx.attempt == 2 else Retry()
