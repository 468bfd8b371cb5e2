"""The machines of the workloads: their steps do nothing but continue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter, time
from typing import Any

from stepwell import Ask, Await, Context, Done, Machine, Next, Outcome, Spawn, step


@dataclass
class Note:
    """A state of the size that the variant asks for."""

    note: str = ""


class Once(Machine, state=Note):
    """One step."""

    @step
    async def start(self, ctx: Context[Note]) -> Done:
        return Done()


class Count(Machine):
    """As many steps as its state says, each with a new state to commit."""

    @dataclass
    class State:
        left: int = 1
        note: str = ""

    @step
    async def start(self, ctx: Context[State]) -> Next | Done:
        if ctx.state.left == 1:
            return Done()
        ctx.state.left -= 1
        return Next(self.start)


class Timed(Machine, state=Note):
    """One step; its result is its start, by the clock that all processes of a machine share."""

    @step
    async def start(self, ctx: Context[Note]) -> Done:
        return Done(perf_counter())


class Asked(Machine):
    """Opens one interaction, or one per item; records when it continued after the reply, if its resources are a
    dict.
    """

    @dataclass
    class State:
        transport: str = "manual"
        items: int = 0
        note: str = ""

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        state = ctx.state
        if not state.items:
            return Ask(state.transport, {"note": state.note}, reply=bool, then=self.finish)
        items = ({"item": number} for number in range(state.items))
        return Ask.each(state.transport, items, reply=bool, then=self.finish, window=2_000)

    @step
    async def finish(self, ctx: Context[State]) -> Done:
        if ctx.resources is not None:
            ctx.resources[ctx.id] = perf_counter()
        return Done()


class Parked(Machine, state=Note):
    """Parks, and ends when it is signalled."""

    @step
    async def start(self, ctx: Context[Note]) -> Await:
        return Await("go", then=self.finish)

    @step
    async def finish(self, ctx: Context[Note]) -> Done:
        return Done()


class Family(Machine):
    """Spawns children of one step, and ends when they have ended."""

    @dataclass
    class State:
        children: int = 0
        note: str = ""

    @step
    async def start(self, ctx: Context[State]) -> Spawn:
        return Spawn([Once.child({"note": ctx.state.note})] * ctx.state.children, then=self.join)

    @step
    async def join(self, ctx: Context[State]) -> Done:
        return Done()


class Alarm(Machine, state=Note):
    """Sleeps 200 ms; its result is the time of day at which it woke."""

    @step
    async def start(self, ctx: Context[Note]) -> Next:
        return Next(self.ring, delay=timedelta(milliseconds=200))

    @step
    async def ring(self, ctx: Context[Note]) -> Done:
        return Done(time())


class Hurried(Machine, state=Note):
    """Opens an interaction that gets no reply within 200 ms; its result is the time of day at which it continued."""

    @step
    async def start(self, ctx: Context[Note]) -> Ask:
        return Ask("manual", {}, reply=bool, then=self.ring, timeout=timedelta(milliseconds=200))

    @step
    async def ring(self, ctx: Context[Note]) -> Done:
        return Done(time())


ALL: tuple[Any, ...] = (Once, Count, Timed, Asked, Parked, Family, Alarm, Hurried)
