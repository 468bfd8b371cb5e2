"""Machines with transactions that are stopped; each step that can be is there plain and transactional."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import sqlalchemy

from stepwell import (
    Ask,
    Await,
    Cancel,
    ConcurrencyLimit,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    RateLimit,
    Retry,
    Spawn,
    Stop,
    Undeliverable,
    step,
)
from stepwell.pipelines import Pipeline, await_, many_to_many, one_to_many, one_to_one
from stepwell.transports import Dispatch, Transport

CREATE_LEDGER = "create table if not exists public.ledger (instance bigint not null, step text not null)"
LIMITS = [ConcurrencyLimit("narrow", 1), RateLimit("slow", 1, per=timedelta(seconds=0.2))]
MOMENT = timedelta(seconds=0.3)


async def book(ctx: Context[Any]) -> None:
    """Write into the ledger, in the transaction of the step."""
    text = f"insert into public.ledger values ({ctx.id}, '{ctx.step}')"
    await ctx.connection.execute(text if isinstance(ctx.connection, asyncpg.Connection) else sqlalchemy.text(text))


class Doomed:
    """Steps of one process that die together, so that all of their rows are orphaned at once."""

    number = 4
    here = 0

    async def die(self) -> None:
        self.here += 1
        if self.here == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()


doomed = Doomed()


class Nowhere(Transport):
    """Nothing can be sent over it."""

    name = "nowhere"

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        raise Undeliverable("nobody is there")


class Leaf(Machine, initial="grow"):
    """A child, which may kill its worker."""

    @step
    async def grow(self, ctx: Context[dict[str, Any]]) -> Outcome:
        if ctx.state.get("dies"):
            await doomed.die()
        return Stop("too small") if ctx.state.get("stops") else Done(ctx.state.get("n"))


class TxLeaf(Machine, initial="grow"):
    """A child that writes."""

    @step(transactional=True)
    async def grow(self, ctx: Context[dict[str, Any]]) -> Done:
        await book(ctx)
        return Done("grown")  # not its number: Postgres chooses which child gets which id


class Sleeper(Machine, initial="sleep"):
    """Awaits a signal."""

    @step
    async def sleep(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Await("wake", then=self.end)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done("awake")


class Guardian(Machine, initial="start"):
    """The parent of one sleeper."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Spawn([Sleeper.child({}, key=ctx.state["child"])], then=self.end)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done([child.status for child in ctx.children])


def some(leaf: type[Machine], ctx: Context[dict[str, Any]]) -> Outcome:
    dies = bool(ctx.state.get("dies"))
    return Spawn([leaf.child({"n": n, "dies": dies and n == 0, "stops": n == 2}) for n in range(3)], then="keyed")


def with_keys(leaf: type[Machine], ctx: Context[dict[str, Any]]) -> Outcome:
    if ctx.state.get("dies"):
        return Done("orphaned")
    own = f"{ctx.state['name']}-"
    return Spawn([leaf.child({"n": n}, key=key) for n, key in enumerate((own + "a", "taken", own + "b"))], then="end")


class Family(Machine, initial="start"):
    """Spawns children without keys, then with keys, one of which is taken."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return some(Leaf, ctx)

    @step
    async def keyed(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return with_keys(Leaf, ctx)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done([child.result for child in ctx.children])


class TxFamily(Machine, initial="start"):
    """The same, transactional."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return some(TxLeaf, ctx)

    @step(transactional=True)
    async def keyed(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return with_keys(TxLeaf, ctx)

    @step(transactional=True)
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Done([child.result for child in ctx.children])


class Narrow(Machine, initial="pass_through"):
    """Needs a slot, then a slot and a token; started with a concurrency key."""

    @step(concurrency_limit="narrow")
    async def pass_through(self, ctx: Context[dict[str, Any]]) -> Outcome:
        if ctx.state.get("dies"):
            await doomed.die()
        if ctx.state.get("hangs"):
            await asyncio.Event().wait()
        return Next(self.pass_slowly)

    @step(concurrency_limit="narrow", rate_limit="slow")
    async def pass_slowly(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done(ctx.state.get("n"))


class TxNarrow(Machine, initial="pass_through"):
    """The same, transactional."""

    @step(transactional=True, concurrency_limit="narrow")
    async def pass_through(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Next(self.pass_slowly)

    @step(transactional=True, concurrency_limit="narrow", rate_limit="slow")
    async def pass_slowly(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Done(ctx.state.get("n"))


class Listener(Machine, initial="start"):
    """Awaits signals, one of which it never asks for."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Await("go", then=self.more)

    @step
    async def more(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Await("on", then=self.end, consume=True)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done(len(ctx.awaited))


class TxListener(Machine, initial="start"):
    """The same, transactional."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Await("go", then=self.more)

    @step(transactional=True)
    async def more(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Await("on", then=self.end, consume=True)

    @step(transactional=True)
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Done(len(ctx.awaited))


class Asker(Machine, initial="start"):
    """Asks about one interaction, over the transport of its state."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        timeout = MOMENT if ctx.state.get("times_out") else None
        return Ask(ctx.state.get("over", "manual"), {"n": ctx.state.get("n")}, reply=int, then=self.end,
                   timeout=timeout,
                   on_timeout="wake", token=bool(ctx.state.get("token")))

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done([ctx.reply.status, ctx.reply.value])

    async def handle(self, ctx: Context[dict[str, Any]], error: Exception) -> Outcome:
        return Done(type(error).__name__)


class TxAsker(Machine, initial="start"):
    """Asks in the transaction in which it writes."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Ask("manual", {"n": 1}, reply=int, then=self.end)

    @step(transactional=True)
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await book(ctx)
        return Done(ctx.reply.value)


class Batch(Machine, initial="start"):
    """Asks once per item, at its second attempt, after it has asked about some and given up."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        if not ctx.attempt:
            return Retry()
        items = ({"n": n} for n in range(int(ctx.state["upto"])))
        return Ask.each("manual", items, reply=int, then=self.end, window=20, token=bool(ctx.state.get("token")))

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done([reply.value for reply in ctx.replies])


class Undecided(Machine, initial="start"):
    """Asks, and then does something else."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        def items() -> Any:
            for n in range(501):  # one more than go into one transaction
                if n == 500:
                    raise ValueError("the source is broken")
                yield {"n": n}

        return Ask.each("manual", items(), reply=int, then=self.end, window=1_000)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done("answered")

    async def handle(self, ctx: Context[dict[str, Any]], error: Exception) -> Outcome:
        return Done("given up")


@dataclass
class Numbers:
    upto: int


@dataclass
class Item:
    number: int


@dataclass
class Score:
    number: int
    points: int


FAILS, KILLS, HANGS = -1, -2, -3
"""Points of an answer that fails its item, kills its worker together with others, or never comes to an end."""


@one_to_many
async def count(numbers: Numbers) -> AsyncIterator[Item]:
    for number in range(numbers.upto):
        yield Item(number)


@one_to_one
async def judge(score: Score) -> Score:
    if score.points == FAILS:
        raise Cancel("hopeless")
    if score.points == KILLS:
        await doomed.die()
    if score.points == HANGS:
        await asyncio.Event().wait()
    return score


@many_to_many
async def rank(scores: AsyncIterator[Score]) -> AsyncIterator[list[int]]:
    for number, points in sorted([(score.number, score.points) async for score in scores]):
        yield [number, points]


def scored(name: str, over: str = "manual", **options: Any) -> Pipeline:
    asks = await_("Ask scores", over=over, input=Item, output=Score, **options)
    return Pipeline(name, [count, asks, judge, rank])


scores = scored("scores")
hasty = scored("hasty", timeout=timedelta(hours=1))
unsent = scored("unsent", over="nowhere")
PIPELINES = [scores, hasty, unsent]
TRANSPORTS = [Nowhere()]
TOKEN_KEYS = {"k": "0123456789abcdef0123456789abcdef"}
MACHINES = [
    Leaf, TxLeaf, Sleeper, Guardian, Family, TxFamily, Narrow, TxNarrow, Listener, TxListener, Asker, TxAsker, Batch,
    Undecided,
    *PIPELINES,
]  # fmt: skip
