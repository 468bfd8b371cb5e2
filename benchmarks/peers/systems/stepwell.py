"""Stepwell itself, through the same harness as the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.peers.contract import System
from benchmarks.peers.timing import main
from stepwell import Await, Context, Done, Engine, Machine, Next, Spawn, step


@dataclass
class Number:
    number: int = -1
    text: str = ""


class Once(Machine, state=Number):
    """One step."""

    @step
    async def start(self, ctx: Context[Number]) -> Done:
        ctx.resources.note(ctx.state.number)
        return Done()


class Chain(Machine, state=Number):
    """As many steps as its state says."""

    @step
    async def start(self, ctx: Context[Number]) -> Next | Done:
        ctx.resources.note()
        if ctx.state.number == 1:
            return Done()
        ctx.state.number -= 1
        return Next(self.start)


class Family(Machine, state=Number):
    """Spawns children, and ends after them."""

    @step
    async def start(self, ctx: Context[Number]) -> Spawn:
        return Spawn([Once.child({"number": -1})] * ctx.state.number, then=self.join)

    @step
    async def join(self, ctx: Context[Number]) -> Done:
        return Done()


class Parked(Machine, state=Number):
    """Waits for a signal."""

    @step
    async def start(self, ctx: Context[Number]) -> Await:
        return Await("go", then=self.finish)

    @step
    async def finish(self, ctx: Context[Number]) -> Done:
        ctx.resources.note()
        return Done()


MACHINES: tuple[Any, ...] = (Once, Chain, Family, Parked)


class Stepwell(System):
    """Stepwell: a client and a worker, each with its own engine."""

    packages = ("stepwell", "asyncpg", "msgspec", "uvloop")
    settings = (
        "asyncpg, uvloop; {slots} slots, everything else at its default; client and worker are two engines, so that a "
        "start reaches the worker through Postgres"
    )
    knobs = {"slots": 500}  # noqa: RUF012 - the base class declares it
    left = "select count(*) from stepwell.instances where status <> 'done'"

    async def install(self) -> None:
        await Engine(self.url, machines=MACHINES).migrate()

    async def open(self) -> None:
        self.client = Engine(self.url, machines=MACHINES)
        await self.client.__aenter__()

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        queues = {"default": int(self.knob["slots"])}
        engine = Engine(self.url, machines=MACHINES, queues=queues, resources=self)
        async with engine, engine.worker():
            yield

    async def start(self, number: int) -> None:
        await self.client.start(Once, Number(number))

    async def start_many(self, number: int) -> None:
        await self.client.start_many([Once.child(Number(text=self.text))] * number)

    async def start_later(self, number: int, seconds: float) -> None:
        self.delay(number, seconds)
        await self.client.start(Once, Number(number), delay=timedelta(seconds=seconds))

    async def start_chains(self, number: int, steps: int) -> None:
        await self.client.start_many([Chain.child(Number(steps, self.text))] * number)

    async def start_families(self, parents: int, children: int) -> None:
        await self.client.start_many([Family.child(Number(children))] * parents)

    async def park(self, number: int) -> None:
        self.waiting = await self.client.start_many([Parked.child(Number())] * number)
        await self.until_none("select count(*) from stepwell.instances where status in ('runnable', 'executing')")

    async def wake(self) -> None:
        await self.client.signal_many([(handle.id, "go") for handle in self.waiting])

    async def signal(self, number: int) -> None:
        await self.waiting[number].signal("go")

    async def ended(self, number: int) -> None:
        await self.waiting[number].result()


if __name__ == "__main__":
    main(Stepwell)
