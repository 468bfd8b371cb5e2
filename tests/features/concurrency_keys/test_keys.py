"""Rule 22, first half: a concurrency key is mutual exclusion in the whole cluster."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Hold, Machine, Next, Retry, Status, step
from tests.conftest import MakeHarness
from tests.support.waiting import held


class Counted(Machine):
    """Counts how many of its kind run at once; a read of its own row makes it last."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        await self.run(ctx)
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        await self.run(ctx)
        return Done()

    async def run(self, ctx: Context[Any]) -> None:
        tally, harness = ctx.resources["tally"], ctx.resources["harness"]
        tally["now"] += 1
        tally["most"] = max(tally["most"], tally["now"])
        await harness.engine.get(ctx.id)
        tally["now"] -= 1


class Gated(Machine):
    """Waits at its first step for the gate in its resources named by its state."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        gates = ctx.resources
        gates[f"{ctx.state['gate']} entered"].set()
        await gates[ctx.state["gate"]].wait()
        return Done("passed")

    @step
    async def switch(self, ctx: Context[Any]) -> Next:
        return Next(self.quick, concurrency_key="b")

    @step
    async def give_up(self, ctx: Context[Any]) -> Next:
        return Next(self.quick, concurrency_key=None)

    @step
    async def keep(self, ctx: Context[Any]) -> Next:
        ctx.resources["kept"].set()
        await ctx.resources["gate"].wait()
        return Next(self.quick)

    @step
    async def park(self, ctx: Context[Any]) -> Retry:
        return Retry(timedelta(hours=1))

    @step
    async def quick(self, ctx: Context[Any]) -> Done:
        return Done("quick")


def make_gates() -> dict[str, asyncio.Event]:
    return {name: asyncio.Event() for name in ("gate", "gate entered", "kept")}


async def test_rule_22_two_workers_never_execute_two_instances_of_one_key(make_harness: MakeHarness) -> None:
    """Rule 22: at most one executing instance per key in the whole cluster. Scenario 91."""
    resources: dict[str, Any] = {"tally": {"now": 0, "most": 0}}
    h = await make_harness([Counted], resources=resources)
    resources["harness"] = h
    handles = await h.engine.start_many([Counted.child(concurrency_key="acct:7")] * 40)

    async with h.another_engine() as other, h.engine.worker({"default": 10}), other.worker({"default": 10}):
        for handle in handles:
            await handle.result(timeout=60)

    assert resources["tally"] == {"now": 0, "most": 1}


async def test_rule_22_instances_of_different_keys_run_at_the_same_time(make_harness: MakeHarness) -> None:
    """Rule 22: a key excludes its own holders only. Scenario 92."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    holder = await h.engine.start(Gated, {"gate": "gate"}, concurrency_key="a")

    async with h.engine.worker({"default": 2}):
        await gates["gate entered"].wait()
        other = await h.engine.start(Gated, step="quick", concurrency_key="b")
        result = await other.result(timeout=30)
        gates["gate"].set()
        await holder.result(timeout=30)

    assert result == "quick"


async def test_rule_22_an_instance_behind_a_busy_key_shows_its_hold(make_harness: MakeHarness) -> None:
    """Rule 22: an instance that waits behind a key shows it."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    await h.engine.start(Gated, {"gate": "gate"}, concurrency_key="a")

    async with h.engine.worker({"default": 2}):
        await gates["gate entered"].wait()
        behind = await h.engine.start(Gated, step="quick", concurrency_key="a")
        waiting = await held(behind)
        gates["gate"].set()
        result = await behind.result(timeout=30)

    assert (waiting.hold, waiting.waiting_for) == (
        Hold.KEY, "concurrency key 'a', which another instance holds",
    )  # fmt: skip
    assert result == "quick"


async def test_rule_22_next_switches_the_key_and_waits_for_the_new_one(make_harness: MakeHarness) -> None:
    """Rule 22: Next(concurrency_key=…) gives up the old key and waits behind the new. Scenario 95."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    holder_of_b = await h.engine.start(Gated, {"gate": "gate"}, concurrency_key="b")

    async with h.engine.worker({"default": 5}):
        await gates["gate entered"].wait()
        switching = await h.engine.start(Gated, step="switch", concurrency_key="a")
        waiting = await held(switching)
        next_of_a = await h.engine.start(Gated, step="quick", concurrency_key="a")
        passed = await next_of_a.result(timeout=30)
        gates["gate"].set()
        results = [await holder_of_b.result(timeout=30), await switching.result(timeout=30)]

    assert (waiting.step, waiting.concurrency_key, waiting.hold) == ("quick", "b", Hold.KEY)
    assert (passed, results) == ("quick", ["passed", "quick"])


async def test_rule_22_next_can_release_the_key(make_harness: MakeHarness) -> None:
    """Rule 22: Next(concurrency_key=None) continues without a key. Scenario 95."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    giving_up = await h.engine.start(Gated, step="give_up", concurrency_key="a")
    async with h.engine.worker({"default": 5}):
        ended = await giving_up.wait(timeout=30)

    assert (ended.result, ended.concurrency_key) == ("quick", None)


async def test_rule_22_next_keeps_the_key_by_default(make_harness: MakeHarness) -> None:
    """Rule 22: a plain Next keeps the key: its next step excludes the others too. Scenario 95."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    keeping = await h.engine.start(Gated, step="keep", concurrency_key="a")

    async with h.engine.worker({"default": 5}):
        await gates["kept"].wait()
        behind = await h.engine.start(Gated, step="quick", concurrency_key="a")
        await held(behind)
        gates["gate"].set()
        ended = [await keeping.wait(timeout=30), await behind.wait(timeout=30)]

    assert [(snapshot.result, snapshot.concurrency_key) for snapshot in ended] == [("quick", "a"), ("quick", "a")]


async def test_rule_22_a_holder_parked_in_a_retry_frees_the_key(make_harness: MakeHarness) -> None:
    """Rule 22: a parked instance holds no key. Scenario 93."""
    gates = make_gates()
    h = await make_harness([Gated], resources=gates)
    parking = await h.engine.start(Gated, step="park", concurrency_key="a")
    behind = await h.engine.start(Gated, step="quick", concurrency_key="a")

    async with h.engine.worker({"default": 5}):
        result = await behind.result(timeout=30)
        parked = await parking.get()

    assert (result, parked.status, parked.hold, parked.attempt) == ("quick", Status.RUNNABLE, Hold.DUE, 1)


async def test_rule_22_the_unique_index_decides(make_harness: MakeHarness) -> None:
    """Rule 22: decided by a unique index, not by care."""
    h = await make_harness([Gated])

    [row] = await h.sql(
        "select indexdef from pg_indexes where schemaname = 'stepwell' and indexname = 'instances_concurrency_key'"
    )

    assert "UNIQUE" in row["indexdef"]
    assert "status = 'executing'" in row["indexdef"]
