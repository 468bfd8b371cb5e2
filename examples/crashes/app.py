"""A checkout that charges twice when its worker dies at the wrong moment, its fixed twin, and how to find out.

    python app.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, step
from stepwell.testing import Harness, explore_crashes


class Bank:
    """The bank, in memory. Like a real one, it carries out a request with the same key once."""

    def __init__(self, h: Harness) -> None:
        self._h = h
        self._seen: set[str] = set()

    def charge(self, order: int, amount: int, key: str | None = None) -> None:
        if key is not None and key in self._seen:
            return
        if key is not None:
            self._seen.add(key)
        self._h.record("charge", order=order, amount=amount)


class HastyCheckout(Machine):
    """Ignores that a step runs again when its worker dies."""

    @dataclass
    class State:
        order: int
        amount: int

    @step
    async def start(self, ctx: Context[State]) -> Await:
        return Await("confirmed", then=self.pay)

    @step
    async def pay(self, ctx: Context[State]) -> Next:
        ctx.resources.charge(ctx.state.order, ctx.state.amount)
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done({"shipped": ctx.state.order})


class Checkout(HastyCheckout):
    """The fixed version: the bank gets a key that is the same in every attempt."""

    @step
    async def pay(self, ctx: Context[HastyCheckout.State]) -> Next:
        ctx.resources.charge(ctx.state.order, ctx.state.amount, key=f"{ctx.id}:{ctx.step}")
        return Next(self.ship)


def scenario_of(machine: type[Machine]) -> Any:
    """A customer who orders and confirms."""

    async def scenario(h: Harness) -> Any:
        h.resources = Bank(h)
        order = await h.engine.start(machine, {"order": 42, "amount": 100}, key="order:42")
        await h.drain()
        await order.signal("confirmed")
        await h.drain()
        return await order.result(timeout=5)

    return scenario


async def main() -> None:
    for machine in (HastyCheckout, Checkout):
        report = await explore_crashes(scenario_of(machine), machines=[machine], check=False)
        print(f"{machine.__name__}: {report}\n")  # noqa: T201 - an example prints


if __name__ == "__main__":
    asyncio.run(main())
