"""Machines: the state of a context, references to steps, and what a step may return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from stepwell import (
    Await,
    Context,
    Done,
    Duplicate,
    Engine,
    Handle,
    Machine,
    Next,
    Outcome,
    Retry,
    Spawn,
    Stop,
    job,
    step,
)
from stepwell.outcomes import Entry


@job
async def send_mail(to: str) -> int:
    return 1


class Checkout(Machine, queue="checkout", version=2):
    @dataclass
    class State:
        order: int
        tries: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        assert_type(ctx.state, Checkout.State)
        assert_type(ctx.state.order, int)
        ctx.state.tries += 1
        ctx.state.tries = "1"  # error
        ctx.state.trys += 1  # error
        return Await("paid", "refused", then=self.ship, timeout=timedelta(hours=1))

    @step(timeout=timedelta(seconds=5))
    async def ship(self, ctx: Context[State]) -> Spawn | Next:
        if ctx.attempt > 1:
            return Next("ship", delay=timedelta(seconds=1), concurrency_key=None)
        children = [Checkout.child({"order": 1}), send_mail.child({"to": "ada"})]
        Spawn([(Checkout, {}), send_mail, Checkout, "Checkout", Checkout.child()], then=self.end)
        Spawn([42], then=self.end)  # error
        return Spawn(children, then=self.end)

    @step(timeout=timedelta(seconds=5))
    def end(self, ctx: Context[State]) -> Done:
        Next(self.ship)
        Next(Checkout.ship)
        Next("ship")
        Next(42)  # error
        Next(self.shp)  # error
        Next(self.ship, delay=5)  # error
        Await(self.ship)  # error
        Await("paid", then=42)  # error
        Retry(5)  # error
        Stop(42)  # error
        return Done({"order": ctx.state.order})

    async def handle(self, error: Exception, ctx: Context[State]) -> Outcome:
        return Retry(timedelta(seconds=1)) if ctx.attempt < 5 else Stop(error)


class Forgetful(Machine):
    @step(timeout=5)  # error
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done(ctx.state["order"])

    @step
    async def wrong(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return 42  # error


async def steps_keep_their_signatures(machine: Checkout, ctx: Context[Checkout.State]) -> None:
    assert_type(await machine.start(ctx), Outcome)
    assert_type(await machine.ship(ctx), Spawn | Next)
    assert_type(machine.end(ctx), Done)
    await machine.start(ctx, 1)  # error
    machine.end(Context[int])  # error


async def doors_take_machines(engine: Engine) -> None:
    order = await engine.start(Checkout, {"order": 1}, key="order:1", delay=timedelta(seconds=1), step=Checkout.ship)
    assert_type(order, Handle[Any])
    assert_type(await engine.start("Checkout"), Handle[Any])
    annotated: Handle[dict[str, int]] = await engine.start(Checkout, {"order": 1})
    assert_type(await annotated.result(), dict[str, int])
    bare: Handle = await engine.start(Checkout)
    assert_type(bare, Handle[Any])
    assert_type(await engine.start_many([Checkout.child({"order": 1})]), list[Handle[Any] | Duplicate])
    assert_type(Checkout.child({"order": 1}), Entry[Any])
    await engine.start(42)  # error
    await engine.start(Checkout())  # error
    await engine.start(Checkout, {}, delay=5)  # error
    await engine.start(Checkout, {}, kye="order:1")  # error
    await engine.start(Checkout, {}, if_exists="ignore")  # error
    await engine.wait("order:1", until="done")  # error
    await engine.restart("order:1", step=42)  # error
    Checkout.child({}, kye="order:1")  # error
