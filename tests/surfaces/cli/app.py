"""An app for the command line's tests, which run it in processes of their own."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from stepwell import Ask, Await, Context, Done, Engine, Machine, Spawn, Stop, job, step
from tests.support.waiting import eventually


class Gate(Machine):
    """Prints that it has started, and waits until the test releases it."""

    @dataclass
    class State:
        folder: str

    @step
    async def start(self, ctx: Context[State]) -> Done:
        logging.getLogger("gate").info("waiting")
        (Path(ctx.state.folder) / "begun").touch()
        await eventually((Path(ctx.state.folder) / "released").exists)
        return Done({"released": True})


class Stuck(Machine):
    """Prints that it has started, and reads from a pipe without a writer."""

    @dataclass
    class State:
        folder: str

    @step
    def start(self, ctx: Context[State]) -> Done:
        (Path(ctx.state.folder) / "begun").touch()
        return Done((Path(ctx.state.folder) / "pipe").read_text())


class Ender(Machine):
    """Cancels the main task of its worker's process, and waits for ever."""

    @step
    async def start(self, ctx: Context[dict[str, str]]) -> Done:
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__name__", "") == "_work":
                task.cancel()
        await asyncio.Event().wait()
        return Done()


class Threaded(Machine):
    """Prints that it has started, and waits for a thread of the loop's pool that never ends, at most for its
    timeout."""

    @dataclass
    class State:
        folder: str

    @step
    async def start(self, ctx: Context[State]) -> Done:
        (Path(ctx.state.folder) / "begun").touch()
        await asyncio.to_thread(time.sleep, 3600)
        return Done()

    @step(timeout=timedelta(milliseconds=50))
    async def briefly(self, ctx: Context[State]) -> Done:
        await asyncio.to_thread(time.sleep, 3600)
        return Done()


class Parcel(Machine):
    """Parks until it is paid, an hour at most; the payment goes into the result."""

    @dataclass
    class State:
        item: str = "teapot"

    @step
    async def start(self, ctx: Context[State]) -> Await:
        return Await("paid", "waived", then=self.ship, timeout=timedelta(hours=1))

    @step
    async def ship(self, ctx: Context[State]) -> Done | Stop:
        if not ctx.awaited:
            return Stop("never paid")
        return Done({"item": ctx.state.item, "paid": [signal.payload for signal in ctx.awaited]})


class Basket(Machine):
    """Sends a parcel, which parks, and says hello, which ends."""

    @step
    async def start(self, ctx: Context[dict[str, str]]) -> Spawn:
        return Spawn([Parcel.child({"item": "cup"}, key=f"cup:{ctx.id}"), greet.child()], then=self.close)

    @step
    async def close(self, ctx: Context[dict[str, str]]) -> Done:
        return Done([child.status for child in ctx.children])


@dataclass
class Grant:
    granted: bool


class Leave(Machine):
    """Asks a person for some days off."""

    @dataclass
    class State:
        boss: str | None = None
        group: str | None = None
        hours: int | None = None
        token: bool = False

    @step
    async def start(self, ctx: Context[State]) -> Ask:
        state = ctx.state
        return Ask(
            "manual", {"days": 3}, reply=Grant, then=self.go, assignee=state.boss, group=state.group, token=state.token,
            timeout=None if state.hours is None else timedelta(hours=state.hours),
        )  # fmt: skip

    @step
    async def go(self, ctx: Context[State]) -> Done:
        return Done()


@job
async def greet(name: str = "world") -> dict[str, str]:
    return {"hello": name}


@job
async def count_frozen() -> int:
    return gc.get_freeze_count()


@job
async def collect_every() -> int:
    return gc.get_threshold()[0]


@job(max_attempts=1)
async def spill() -> None:
    raise ValueError("no tea")


engine = Engine(
    machines=[Gate, Stuck, Ender, Threaded, Parcel, Basket, Leave, greet, count_frozen, collect_every, spill]
)
