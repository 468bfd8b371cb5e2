"""What the soak runs: a pack of signals, a fan of children, something flaky, and a critical section."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, Retry, Spawn, Stop, step
from stepwell.outcomes import Outcome

State = dict[str, Any]

TIMEOUT = timedelta(seconds=60)
ROUNDS = 2
PACK = 3


class Pack(Machine, initial="gather"):
    """Gathers items in packs of three until it is closed.

    Its state has the consumed signals, by payload, and the number of signals that it saw and keeps while it waits for
    more.
    """

    @step
    async def gather(self, ctx: Context[State]) -> Await:
        state = {**ctx.state, "kept": len(ctx.awaited)}
        return Await("item", "close", then=self.look, timeout=TIMEOUT, state=state)

    @step
    async def look(self, ctx: Context[State]) -> Outcome:
        payloads = [signal.payload for signal in ctx.awaited]
        consumed = {**ctx.state, "consumed": [*ctx.state.get("consumed", []), *payloads], "kept": 0}
        if not payloads or any(signal.name == "close" for signal in ctx.awaited):
            return Next(self.finish, state=consumed)
        if len(payloads) >= PACK:
            return Next(self.gather, state=consumed)
        if payloads[-1] % 2:  # some are consumed one by one, some wait for a full pack
            return Await("item", "close", then=self.look, timeout=TIMEOUT, consume=True, state=consumed)
        kept = {**ctx.state, "kept": len(payloads)}
        return Await("item", "close", then=self.look, timeout=TIMEOUT, state=kept)

    @step
    async def finish(self, ctx: Context[State]) -> Done:
        return Done(len(ctx.state.get("consumed", [])))


class Flaky(Machine, initial="try_it"):
    """Fails as often as its state says, in one of two ways, and then ends as it says."""

    @step
    async def try_it(self, ctx: Context[State]) -> Outcome:
        if ctx.attempt < ctx.state.get("fails", 0):
            if ctx.attempt % 2:
                raise ConnectionError("the environment is away")
            return Retry(delay=timedelta(seconds=ctx.attempt))
        return Stop("enough") if ctx.state.get("stops") else Done(ctx.attempt)

    async def handle(self, error: BaseException, ctx: Context[State]) -> Outcome:
        return Retry() if isinstance(error, ConnectionError) else Stop(error)


class Section(Machine, initial="first"):
    """Two steps under one concurrency key, which write down when they were inside."""

    @step
    async def first(self, ctx: Context[State]) -> Next:
        await inside(ctx)
        return Next(self.second)

    @step
    async def second(self, ctx: Context[State]) -> Done:
        await inside(ctx)
        return Done()


async def inside(ctx: Context[State]) -> None:
    entry = await ctx.resources.fetchval(
        "insert into soak_sections (key, instance, fence) values ($1, $2, $3) returning number",
        ctx.state["section"], ctx.id, ctx.fence,
    )  # fmt: skip
    await asyncio.sleep(0)
    await ctx.resources.execute("update soak_sections set ended = clock_timestamp() where number = $1", entry)


class Fan(Machine, initial="fan_out"):
    """Spawns what its state says, twice, and writes down a child that had not ended when it was joined."""

    @step
    async def fan_out(self, ctx: Context[State]) -> Spawn:
        return Spawn([leaf(kind, ctx.state) for kind in ctx.state["leaves"]], then=self.join)

    @step
    async def join(self, ctx: Context[State]) -> Outcome:
        early = [child.id for child in ctx.children if not child.status.is_terminal]
        rounds = ctx.state.get("rounds", 0) + 1
        state = {**ctx.state, "rounds": rounds, "early": [*ctx.state.get("early", []), *early]}
        return Next(self.fan_out, state=state) if rounds < ROUNDS else Done(rounds, state=state)


def leaf(kind: int, state: State) -> Any:
    """One child: plain, with a key that other fans use too, or in a critical section."""
    match kind % 4:
        case 0:
            return Flaky.child({"fails": kind % 3, "stops": kind % 5 == 0})
        case 1:
            return Pack.child({}, key=f"leaf {kind}")
        case 2:
            return Section.child({"section": f"s{kind % 3}"}, concurrency_key=f"s{kind % 3}")
        case _:
            return Pack.child({})


MACHINES = [Pack, Flaky, Section, Fan]
STEPS = {"Pack": "gather", "Flaky": "try_it", "Section": "first", "Fan": "fan_out"}
