"""The app of the demo: a checkout with steps that take a moment each; examples/checkout without the effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from stepwell import Await, Context, Done, Engine, Machine, Stop, step
from stepwell._cli.demo import effects

# Long enough that the kill comes in the middle of the step, even on a busy machine.
MOMENTS: Final = {"reserve": 1.5, "ship": 0.5}


class Checkout(Machine, initial="reserve"):
    @dataclass
    class State:
        item: str
        reservation: str | None = None

    @step
    async def reserve(self, ctx: Context[State]) -> Await:
        async with _work(ctx):
            ctx.state.reservation = f"R-{ctx.id}"
        return Await("payment_confirmed", then=self.ship, timeout=timedelta(hours=1))

    @step
    async def ship(self, ctx: Context[State]) -> Done | Stop:
        if not ctx.awaited:
            return Stop("the payment never came")
        async with _work(ctx):
            payments = [signal.payload for signal in ctx.awaited]
        return Done({"shipped": ctx.state.item, "reservation": ctx.state.reservation, "payments": payments})


@asynccontextmanager
async def _work(ctx: Context[Any]) -> AsyncIterator[None]:
    """Take the time of a step, and note its start and its end."""
    effects.note(ctx.step, ctx.attempt, "begins")
    await asyncio.sleep(MOMENTS[ctx.step])
    yield
    effects.note(ctx.step, ctx.attempt, "ends")


engine = Engine(machines=[Checkout])
