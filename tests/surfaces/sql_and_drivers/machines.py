"""The machines of the tests of SQL functions and drivers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from stepwell import Ask, Await, ConcurrencyLimit, Context, Done, Machine, Outcome, RateLimit, Spawn, step


class Order(Machine):
    """Waits for its payment."""

    @dataclass
    class State:
        number: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        return Await("paid", then=self.finish)

    @step
    async def finish(self, ctx: Context[State]) -> Outcome:
        return Done(ctx.awaited[0].payload)


class Note(Machine):
    """Ends at once."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Done(ctx.state)


class Asking(Machine):
    """Accepts any state."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", {}, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done()


class Busy(Machine):
    """Runs until it is stopped."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        await asyncio.Event().wait()
        return Done()


class Family(Machine):
    """Waits for two children."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Spawn([Order.child(), Order.child()], then=self.count)

    @step
    async def count(self, ctx: Context[Any]) -> Outcome:
        return Done([child.status for child in ctx.children])


LIMITS = [ConcurrencyLimit("desk", 1), RateLimit("desk", 5), RateLimit("mail", 5, burst=3)]


class Paced(Machine, initial="pace"):
    """Its first step has limits of its own."""

    @step(concurrency_limit=("desk", "main"), rate_limit="mail", weight=2)
    async def pace(self, ctx: Context[Any]) -> Done:
        return Done()

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()
