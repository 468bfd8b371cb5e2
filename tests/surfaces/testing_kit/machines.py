"""Machines that the tests of the kit play with."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, Retry, Spawn, job, step


class Greeting(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("hello")


class Family(Machine):
    """Continues, has children, tries three times, ends."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.grow)

    @step
    def grow(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Greeting.child(), Greeting.child()], then=self.try_)

    @step
    async def try_(self, ctx: Context[Any]) -> Retry | Done:
        return Retry(delay=timedelta(hours=1)) if ctx.attempt < 2 else Done(len(ctx.children))


class Parking(Machine):
    """Waits for a signal, or a day."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("word", then=self.end, timeout=timedelta(days=1))

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done([signal.payload for signal in ctx.awaited])


class Endless(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.round)

    @step
    async def round(self, ctx: Context[Any]) -> Next:
        return Next(self.start)


class Broken(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        raise RuntimeError("no tea left")


class Careless(Machine):
    """Fails deep in a library, in the loop and in a thread."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(json.loads("{"))

    @step
    def start_blocking(self, ctx: Context[Any]) -> Done:
        return Done(json.loads("{"))


class Noting(Machine):
    """Notes its name in ctx.resources, a list."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append(ctx.key)
        return Done()


@job(queue="mail")
async def send_mail(to: str) -> str:
    return f"sent to {to}"
