"""Small machines for blocking code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell import Await, Context, Done, Machine, Stop, job, step


class Doubled(Machine):
    @dataclass
    class State:
        number: int = 1

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done(ctx.state.number * 2)


class Waiter(Machine):
    """Waits for `go`, and ends with its payload."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.woken)

    @step
    async def woken(self, ctx: Context[Any]) -> Done:
        return Done(ctx.awaited[0].payload)


class Broken(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Stop:
        return Stop("it is broken")


@job
def add(a: int, b: int) -> int:
    return a + b


MACHINES = [Doubled, Waiter, Broken, add]
