"""A checkout that is parked for its payment: an hour if need be, in a row, without a process that waits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from stepwell import Await, Context, Done, Engine, Machine, Retry, Stop, step

log = logging.getLogger("checkout")

MOST_TRIES = 5


class Checkout(Machine, queue="checkout", version=1):
    @dataclass
    class State:
        order: int

    @step
    async def start(self, ctx: Context[State]) -> Await:
        log.info("order %d waits for its payment", ctx.state.order)
        return Await("payment_confirmed", then=self.ship, timeout=timedelta(hours=1))

    @step
    async def ship(self, ctx: Context[State]) -> Done | Stop:
        if not ctx.awaited:  # woken by the timeout
            return Stop("payment never came")
        log.info("shipping order %d, paid with %s", ctx.state.order, ctx.awaited[0].payload)
        return Done({"order": ctx.state.order, "paid": ctx.awaited[0].payload})

    async def handle(self, error: Exception, ctx: Context[State]) -> Retry | Stop:
        return Retry(timedelta(seconds=ctx.attempt + 1)) if ctx.attempt < MOST_TRIES else Stop(error)


engine = Engine(machines=[Checkout], queues={"checkout": 50})
