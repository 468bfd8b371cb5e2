"""An order in three steps. Kill its worker in any of them: the next worker continues where it stood."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from stepwell import Context, Done, Engine, Machine, Next, step

log = logging.getLogger("order")


class Order(Machine, initial="reserve"):
    @dataclass
    class State:
        item: str
        reservation: str | None = None
        payment: str | None = None

    @step
    async def reserve(self, ctx: Context[State]) -> Next:
        log.info("reserving a %s", ctx.state.item)
        await asyncio.sleep(2)  # the warehouse is slow
        ctx.state.reservation = f"R-{ctx.id}"
        return Next(self.charge)  # committed, with the reservation in the state, before charge starts

    @step
    async def charge(self, ctx: Context[State]) -> Next:
        # An interrupted step runs again: give the provider a key, so that it charges once.
        log.info("charging, attempt %d, idempotency key order-%d", ctx.attempt, ctx.id)
        await asyncio.sleep(10)  # time enough for a kill -9
        ctx.state.payment = f"P-{ctx.id}"
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        log.info("shipping %s, paid with %s", ctx.state.reservation, ctx.state.payment)
        await asyncio.sleep(2)
        return Done({"shipped": ctx.state.item})


engine = Engine(machines=[Order])
