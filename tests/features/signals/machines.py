"""Small machines that wait: the tests of this folder start, signal and operate them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, Retry, Spawn, Stop, step


def told(signals: tuple[Any, ...]) -> list[list[Any]]:
    """Signals as a result can hold them: [name, payload] each, in their order."""
    return [[signal.name, signal.payload] for signal in signals]


class Waiter(Machine, initial="wait"):
    """Awaits the names in its state, and is done with the signals that it received."""

    @dataclass
    class State:
        names: list[str] = field(default_factory=lambda: ["go"])

    @step
    async def wait(self, ctx: Context[State]) -> Await:
        return Await(*ctx.state.names, then=self.woken)

    @step
    async def woken(self, ctx: Context[State]) -> Done:
        return Done(told(ctx.awaited))


class Item(Machine, initial="work"):
    """A child: done with twice its number, failed or parked, as its state says."""

    @dataclass
    class State:
        number: int = 0
        ends: str = "done"

    @step
    async def work(self, ctx: Context[State]) -> Done | Stop | Await:
        match ctx.state.ends:
            case "done":
                return Done(ctx.state.number * 2)
            case "failed":
                return Stop(f"item {ctx.state.number} is broken")
            case _:
                return Await("go", then=self.finish)

    @step
    async def finish(self, ctx: Context[State]) -> Done:
        return Done(ctx.state.number * 2)


class Order(Machine, initial="split"):
    """A parent: spawns an item per entry of its state, and is done with what it sees of them."""

    @dataclass
    class State:
        items: list[dict[str, Any]] = field(default_factory=list)
        options: list[dict[str, Any]] = field(default_factory=list)

    @step
    async def split(self, ctx: Context[State]) -> Spawn:
        options = ctx.state.options or [{}] * len(ctx.state.items)
        return Spawn(
            [Item.child(item, **option) for item, option in zip(ctx.state.items, options, strict=True)], then=self.join
        )

    @step
    async def join(self, ctx: Context[State]) -> Done:
        return Done([[child.index, child.status, child.result] for child in ctx.children])


class Gated(Machine, initial="run"):
    """Runs until its gate is opened; what its steps met with is in its resources, a `Gates`."""

    @dataclass
    class State:
        note: str = ""

    @step
    async def run(self, ctx: Context[State]) -> Done:
        gates: Gates = ctx.resources
        gates.runs.append(ctx.step)
        gates.entered.set()
        try:
            await gates.open.wait()
        except asyncio.CancelledError:
            gates.runs.append("cancelled")
            raise
        return Done("passed")

    @step
    def run_in_thread(self, ctx: Context[State]) -> Done:
        gates: Gates = ctx.resources
        gates.runs.append(ctx.step)
        gates.thread_entered.set()
        gates.thread_open.wait(30)
        gates.runs.append("ended by itself")
        return Done("passed")

    @step
    async def quick(self, ctx: Context[State]) -> Done:
        ctx.resources.runs.append(ctx.step)
        return Done(f"quick {ctx.state.note}".strip())

    @step
    async def again(self, ctx: Context[State]) -> Retry | Next:
        return Next(self.quick)


class Gates:
    """Where the steps of `Gated` wait, and what they did."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.thread_entered = threading.Event()
        self.thread_open = threading.Event()
