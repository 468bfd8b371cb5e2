"""The app of the demo: an order in three steps, each of which takes a moment. examples/order has the same, bare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from stepwell import Context, Done, Engine, Machine, Next, step
from stepwell._cli.demo import effects

# Charging takes long enough that the kill lands in its middle, also on a busy machine.
MOMENTS: Final = {"reserve": 0.6, "charge": 2.0, "ship": 0.6}


class Order(Machine, initial="reserve"):
    @dataclass
    class State:
        item: str
        reservation: str | None = None
        payment: str | None = None

    @step
    async def reserve(self, ctx: Context[State]) -> Next:
        async with _work(ctx):
            ctx.state.reservation = f"R-{ctx.id}"
        return Next(self.charge)

    @step
    async def charge(self, ctx: Context[State]) -> Next:
        async with _work(ctx):
            ctx.state.payment = f"P-{ctx.id}"
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        async with _work(ctx):
            parcel = f"{ctx.state.item}, reserved as {ctx.state.reservation}, paid with {ctx.state.payment}"
        return Done({"parcel": parcel})


@asynccontextmanager
async def _work(ctx: Context[Any]) -> AsyncIterator[None]:
    """The moment a step takes, noted when it begins and when it ends."""
    effects.note(ctx.step, ctx.attempt, "begins")
    await asyncio.sleep(MOMENTS[ctx.step])
    yield
    effects.note(ctx.step, ctx.attempt, "ends")


engine = Engine(machines=[Order])
