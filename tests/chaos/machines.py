"""What the workers run: each machine exercises one promise, and its result or its rows show whether it was kept.

Rows that transactional steps write: `ledger`, one per step; `spans`, from when to when a step held a key or a slot,
counted by a sequence, since the clock may be moved; `balances`, read and written back without a lock. A trigger writes
`pruned`: what was deleted, and how long before its time. Settings are the defaults, but for retentions of some seconds
and for what makes faults shorter: lease, beat, polls and the like, and `prune`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepwell import (  # fmt: skip
    Ask,
    Await,
    ConcurrencyLimit,
    Context,
    Done,
    Engine,
    Machine,
    Next,
    Outcome,
    RateLimit,
    Retry,
    Spawn,
    Stop,
    step,
)
from stepwell.pipelines import Pipeline, await_, many_to_many, one_to_many, one_to_one
from stepwell.transports import Dispatch, Transport

CREATE = (
    "create sequence public.moments",
    """
create table public.ledger (
  number bigint generated always as identity primary key, subject text not null, step text not null,
  claimed_at timestamptz, worker integer
)""",
    "create table public.spans (guard text not null, begun bigint not null, ended bigint not null)",
    "create table public.balances (account text primary key, amount bigint not null)",
    """
create table public.pruned (
  id bigint not null, key text, key_scope text, machine text not null, status text not null, early interval,
  had_live_parent boolean not null
)""",
    # The pruner counts by the time of its transaction, and deletes what no live parent needs. What a start inserts and
    # takes back in one transaction was never there.
    """
create function public.note_pruned() returns trigger language plpgsql as $$
begin
  if old.created_at < now() or old.finished_at is not null then
    insert into public.pruned
    select old.id, old.key, old.key_scope, old.machine, old.status,
           old.finished_at + (select m.retention from stepwell.machines m where m.name = old.machine and m.active)
             - now(),
           exists (select from stepwell.instances p where p.id = old.parent_id and p.finished_at is null);
  end if;
  return null;
end $$""",
    "create trigger chaos after delete on stepwell.instances for each row execute function public.note_pruned()",
)
WIRE = "wire"
NARROW, PACED = ConcurrencyLimit("narrow", 3), RateLimit("paced", 20, burst=5)
ROUNDS, CHILDREN = 2, 4
PATIENCE = timedelta(seconds=10)  # of a transactional step: its own statement may wait on a connection that went dark
BRIEF, PRUNE = timedelta(seconds=4), timedelta(seconds=2)
_BOOK = (
    "insert into public.ledger (subject, step, claimed_at, worker) "
    "select $1, $2, i.claimed_at, w.pid from stepwell.instances i left join stepwell.workers w on w.id = i.worker_id "
    "where i.id = $3"
)
State = Context[dict[str, Any]]


async def book(ctx: State) -> None:
    await ctx.connection.execute(_BOOK, ctx.state["subject"], ctx.step, ctx.id)


async def hold(ctx: State, guard: str) -> None:
    """Stay inside for a moment, and write down from when to when."""
    begun = await ctx.connection.fetchval("select nextval('public.moments')")
    await asyncio.sleep(ctx.state["inside"])
    await ctx.connection.execute(
        "insert into public.spans values ($1, $2, nextval('public.moments'))", guard, begun
    )  # fmt: skip


class Patient:
    """What a transactional step raises may be the fault's doing, so that it is retried; nothing else may fail."""

    async def handle(self, error: Exception, ctx: State) -> Outcome:
        steps: dict[str, Any] = self.steps  # type: ignore[attr-defined]  # of the machine beside it
        return Retry(timedelta(seconds=0.2)) if steps[ctx.step].transactional else Stop(error)


class Transfer(Patient, Machine, initial="debit"):
    """Two transactional steps, and a plain one between them."""

    @step(transactional=True, timeout=PATIENCE)
    async def debit(self, ctx: State) -> Outcome:
        await book(ctx)
        return Next(self.check, {**ctx.state, "trail": ["debit"]})

    @step
    async def check(self, ctx: State) -> Outcome:
        ctx.state["trail"].append("check")
        return Next(self.credit)

    @step(transactional=True, timeout=PATIENCE)
    async def credit(self, ctx: State) -> Outcome:
        await book(ctx)
        return Done([*ctx.state["trail"], "credit"])


class Collector(Patient, Machine, initial="start"):
    """Collects signals until it has as many as expected: all in its inbox, or one wake at a time."""

    @step
    async def start(self, ctx: State) -> Outcome:
        return Await("item", then=self.consume if ctx.state["consumes"] else self.pack)

    @step
    async def pack(self, ctx: State) -> Outcome:
        if len(ctx.awaited) < ctx.state["count"]:
            return Await("item", then=self.pack)
        return Done(sorted(signal.payload for signal in ctx.awaited))

    @step
    async def consume(self, ctx: State) -> Outcome:
        ctx.state["got"] += [signal.payload for signal in ctx.awaited]
        if len(ctx.state["got"]) < ctx.state["count"]:
            return Await("item", then=self.consume, consume=True)
        return Done(sorted(ctx.state["got"]))


class Sleeper(Patient, Machine, initial="start"):
    """Waits for a signal that is never sent, then for a delay."""

    @step
    async def start(self, ctx: State) -> Outcome:
        return Await("never", then=self.wake, timeout=timedelta(seconds=ctx.state["seconds"]))

    @step
    async def wake(self, ctx: State) -> Outcome:
        return Next(self.end, delay=timedelta(seconds=ctx.state["seconds"]))

    @step
    async def end(self, ctx: State) -> Outcome:
        return Done("slept")


class Busy(Patient, Machine, initial="work"):
    """Sleeps, so that a worker that dies always has a running step."""

    @step
    async def work(self, ctx: State) -> Outcome:
        await asyncio.sleep(ctx.state["seconds"])
        return Done("worked")


class Leaf(Patient, Machine, initial="work", retention=BRIEF):
    @step(transactional=True, timeout=PATIENCE)
    async def work(self, ctx: State) -> Outcome:
        await book(ctx)
        return Done(ctx.state["value"])


class Tree(Patient, Machine, initial="start", retention=BRIEF):
    """Spawns and joins children, in rounds."""

    @step
    async def start(self, ctx: State) -> Outcome:
        round_ = len(ctx.state["sums"])
        subject = ctx.state["subject"]
        children = [Leaf.child({"subject": f"{subject}/{round_}.{i}", "value": i + 1}) for i in range(CHILDREN)]
        return Spawn(children, then=self.join)

    @step
    async def join(self, ctx: State) -> Outcome:
        ctx.state["sums"].append(sum(child.result for child in ctx.children))
        return Next(self.start) if len(ctx.state["sums"]) < ROUNDS else Done(ctx.state["sums"])


class Keyed(Patient, Machine, initial="add"):
    """Adds 1 to its account, without a lock: only the concurrency key keeps others away."""

    @step(transactional=True, timeout=PATIENCE)
    async def add(self, ctx: State) -> Outcome:
        account = ctx.state["account"]
        read = "select amount from public.balances where account = $1"
        amount = await ctx.connection.fetchval(read, account) or 0
        await hold(ctx, f"key {account}")
        await ctx.connection.execute(
            "insert into public.balances values ($1, $2) on conflict (account) do update set amount = excluded.amount",
            account, amount + 1,
        )  # fmt: skip
        await book(ctx)
        return Done("added")


class Limited(Patient, Machine, initial="enter", retention=BRIEF):
    @step(transactional=True, timeout=PATIENCE, concurrency_limit=NARROW.name)
    async def enter(self, ctx: State) -> Outcome:
        await hold(ctx, f"limit {NARROW.name}")
        await book(ctx)
        return Done("entered")


class Rated(Patient, Machine, initial="begin", retention=BRIEF):
    @step(transactional=True, timeout=PATIENCE, rate_limit=PACED.name)
    async def begin(self, ctx: State) -> Outcome:
        await book(ctx)
        return Done("begun")


class Asker(Patient, Machine, initial="start", retention=BRIEF):
    """Asks once, then once per item."""

    @step
    async def start(self, ctx: State) -> Outcome:
        request = {"subject": ctx.state["subject"], "number": 0}
        return Ask(WIRE, request, reply=int, then=self.each)

    @step
    async def each(self, ctx: State) -> Outcome:
        subject = ctx.state["subject"]
        items = [{"subject": subject, "number": number} for number in range(1, ctx.state["count"])]
        state = {**ctx.state, "first": ctx.reply.value}
        return Ask.each(WIRE, items, reply=int, window=3, then=self.end, state=state)

    @step
    async def end(self, ctx: State) -> Outcome:
        return Done([ctx.state["first"], *(reply.value for reply in ctx.replies)])


@dataclass
class Numbers:
    subject: str
    upto: int


@dataclass
class Item:
    subject: str
    number: int


@dataclass
class Score:
    number: int
    points: int


@one_to_many
async def count(numbers: Numbers) -> AsyncIterator[Item]:
    for number in range(numbers.upto):
        yield Item(numbers.subject, number)


@one_to_one
async def judge(score: Score) -> Score:
    return score


@many_to_many
async def rank(scores: AsyncIterator[Score]) -> AsyncIterator[list[int]]:
    async for score in scores:
        yield [score.number, score.points]


ranking = Pipeline(
    "ranking", [count, await_("Ask scores", over=WIRE, input=Item, output=Score, window=4), judge, rank]
)


class Wire(Transport):
    """Sends into a file, which a failover does not change; the provider completes what it finds there."""

    name = WIRE

    def __init__(self, file: str) -> None:
        self._file = file

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        line = f"{dispatch.interaction_id}\n".encode()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        return None


MACHINES = [Transfer, Collector, Sleeper, Busy, Leaf, Tree, Keyed, Limited, Rated, Asker, ranking]


def make_engine(url: str, wire: str) -> Engine:
    """An engine that sends its interactions into the file `wire`."""
    return Engine(url, machines=MACHINES, limits=[NARROW, PACED], transports=[Wire(wire)], prune=PRUNE)


if "STEPWELL_CHAOS_WIRE" in os.environ:  # `stepwell worker tests.chaos.machines:engine`
    engine = make_engine(os.environ["STEPWELL_DATABASE_URL"], os.environ["STEPWELL_CHAOS_WIRE"])
