"""Rules 3, 7 and 8: a woken step that runs again, by retry, by handle or after a crash, sees the same awaited."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, Retry, Status, Stop, step
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox
from tests.features.signals.machines import told
from tests.support.waiting import held

SHORT_LEASE = {"lease": timedelta(seconds=1.5), "heartbeat": timedelta(seconds=0.3), "reap": timedelta(seconds=0.1)}


class Fragile(Machine):
    """Its woken step raises; `handle` returns what its state says, and notes what it saw."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.woken)

    @step
    async def woken(self, ctx: Context[Any]) -> Done:
        if ctx.attempt == 0:
            raise LookupError("not yet")
        return Done({"handled": ctx.state["handled"], "again": told(ctx.awaited)})

    @step
    async def after(self, ctx: Context[Any]) -> Done:
        return Done({"handled": ctx.state["handled"], "inbox": told(ctx.inbox)})

    async def handle(self, error: Exception, ctx: Context[Any]) -> Retry | Next | Stop:
        ctx.state["handled"] = [told(ctx.awaited), told(ctx.inbox)]
        match ctx.state["then"]:
            case "retry":
                return Retry()
            case "next":
                return Next(self.after)
            case _:
                return Stop(error)


async def test_rule_3_a_retry_by_handle_sees_the_same_awaited(make_harness: MakeHarness) -> None:
    """Rules 3 and 7, Scenario 35: handle sees awaited and inbox (in Scenario 20 none); its Retry consumes nothing."""
    h = await make_harness([Fragile])
    fragile = await h.engine.start(Fragile, {"then": "retry"})
    await h.engine.signal_many([(fragile.id, "other", 1), (fragile.id, "go", 2)])

    async with h.engine.worker():
        result = await fragile.result(30)

    assert result == {"handled": [[["go", 2]], [["other", 1], ["go", 2]]], "again": [["go", 2]]}


async def test_rule_7_the_next_of_handle_consumes_as_the_step_would_have(make_harness: MakeHarness) -> None:
    """Rule 7: the outcome of handle consumes the same way: exactly the signals of the step."""
    h = await make_harness([Fragile])
    fragile = await h.engine.start(Fragile, {"then": "next"})
    await h.engine.signal_many([(fragile.id, "other", 1), (fragile.id, "go", 2)])

    async with h.engine.worker():
        result = await fragile.result(30)

    assert result == {"handled": [[["go", 2]], [["other", 1], ["go", 2]]], "inbox": [["other", 1]]}


async def test_rule_6_a_retry_by_an_operator_sees_what_the_failed_step_saw(make_harness: MakeHarness) -> None:
    """Rules 6 and 31: a failed instance keeps inbox and awaits; after a retry or restart the step sees them again."""
    h = await make_harness([Fragile])
    fragile = await h.engine.start(Fragile, {"then": "stop"})
    await fragile.signal("go", 2)

    async with h.engine.worker():
        failed = await fragile.wait(30)
        kept = await inbox(h, fragile.id)
        await h.engine.restart(fragile.id, step=Fragile.after)
        result = await fragile.result(30)

    assert (failed.status, failed.awaits, kept) == (Status.FAILED, ("go",), [("go", False)])
    assert result["inbox"] == [["go", 2]]


async def test_rule_8_a_woken_step_that_had_no_outcome_sees_the_same_awaited_again(make_harness: MakeHarness) -> None:
    """Rule 8, Scenario 36: its worker dies during the step; the next run receives the same signals."""
    entered = asyncio.Event()

    class Hanging(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.woken)

        @step
        async def woken(self, ctx: Context[Any]) -> Done:
            if ctx.attempt == 0:
                entered.set()
                await asyncio.Event().wait()
            return Done({"awaited": told(ctx.awaited), "inbox": told(ctx.inbox)})

    h = await make_harness([Hanging], **SHORT_LEASE)
    hanging = await h.engine.start(Hanging)
    await h.engine.signal_many([(hanging.id, "other", 1), (hanging.id, "go", 2)])

    async with h.engine.worker(drain_timeout=timedelta(0)):
        await entered.wait()
    left = await hanging.get()
    async with h.engine.worker():
        result = await hanging.result(30)

    assert (left.status, left.awaits) == (Status.EXECUTING, ("go",))
    assert result == {"awaited": [["go", 2]], "inbox": [["other", 1], ["go", 2]]}


async def test_rule_3_a_latecomer_joins_the_awaited_of_the_next_attempt(make_harness: MakeHarness) -> None:
    """Rule 3: a retry sees what it awaited again, and later signals."""

    class Patient(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.woken)

        @step
        async def woken(self, ctx: Context[Any]) -> Retry | Done:
            return Retry(timedelta(hours=1)) if ctx.attempt == 0 else Done(told(ctx.awaited))

    h = await make_harness([Patient])
    patient = await h.engine.start(Patient)
    await patient.signal("go", 1)

    async with h.engine.worker():
        await held(patient, attempt=1)
        await patient.signal("go", 2)
        await h.advance(timedelta(hours=1))
        result = await patient.result(30)

    assert result == [["go", 1], ["go", 2]]
