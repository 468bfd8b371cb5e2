"""The server does not take some outcomes, and takes others: those that need what is missing are kept for later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from stepwell import Ask, Context, Done, Handle, Machine, Stop, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

BREAK = "alter table stepwell.interactions rename to elsewhere"
MEND = "alter table stepwell.elsewhere rename to interactions"
RAISE = """
create function public.poison() returns trigger language plpgsql as $$
begin
  raise exception 'it hurts' using errcode = 'XX000';
end $$"""
POISON = """
create trigger poison before update on stepwell.instance_data
for each row when (new.result::text like '%poison%') execute function public.poison()"""
OTHERS = 40  # of which more fail together with it than it takes to refuse an outcome


@dataclass
class Signs:
    """When steps may end, and what was handled."""

    ends: dict[int, asyncio.Event] = field(default_factory=dict)
    handled: list[str] = field(default_factory=list)

    async def end(self, ctx: Context[Any]) -> None:
        await self.ends.setdefault(ctx.id, asyncio.Event()).wait()


class Plain(Machine):
    """Says what it was given."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.end(ctx)
        return Done(ctx.state["says"])

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources.handled.append(str(error))
        return Stop("undone")


class Asks(Machine):
    """Parks at a question."""

    @step
    async def start(self, ctx: Context[Any]) -> Ask:
        await ctx.resources.end(ctx)
        return Ask("manual", {}, reply=str, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources.handled.append(str(error))
        return Stop("undone")


class AsksInTransaction(Machine):
    """The same, with a step that is transactional."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Ask:
        await ctx.resources.end(ctx)
        return Ask("manual", {}, reply=str, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources.handled.append(str(error))
        return Stop("undone")


def stands(h: Harness, handle: Handle[Any], status: str) -> Callable[[], Awaitable[Any]]:
    return lambda: h.sql("select from stepwell.instances where id = $1 and status = $2", handle.id, status)


async def end_one_by_one(h: Harness, signs: Signs, others: list[Handle[Any]]) -> None:
    for handle in others:
        signs.ends[handle.id].set()
        await eventually(stands(h, handle, "done"))


async def test_an_outcome_that_needs_a_missing_table_is_kept_while_others_commit(make_harness: MakeHarness) -> None:
    signs = Signs()
    h = await make_harness([Asks, Plain], resources=signs)
    asks = await h.engine.start(Asks)
    others = await h.engine.start_many([(Plain, {"says": "well"})] * OTHERS)

    async with h.engine.worker():
        await eventually(lambda: len(signs.ends) == OTHERS + 1)
        await h.sql(BREAK)
        signs.ends[asks.id].set()
        await end_one_by_one(h, signs, others)
        await h.sql(MEND)
        await eventually(stands(h, asks, "awaiting_external"))

    assert signs.handled == []


async def test_a_transactional_step_that_needs_a_missing_table_runs_again(make_harness: MakeHarness) -> None:
    signs = Signs()
    h = await make_harness([AsksInTransaction], resources=signs)
    asks = await h.engine.start(AsksInTransaction)

    with armed("transactional.returned") as returned:
        async with h.engine.worker():
            await eventually(lambda: asks.id in signs.ends)
            await h.sql(BREAK)
            with armed("transactional.begun", hold=True) as again:
                signs.ends[asks.id].set()
                await again.reached()
                await h.sql(MEND)  # not between a refused outcome and the check whether the server takes it now
            await eventually(stands(h, asks, "awaiting_external"))

    assert signs.handled == []
    assert len(returned.facts) > 1


async def test_an_outcome_that_alone_of_its_shape_fails_goes_to_handle(make_harness: MakeHarness) -> None:
    signs = Signs()
    h = await make_harness([Plain], resources=signs)
    await h.sql(RAISE)
    await h.sql(POISON)
    poison = await h.engine.start(Plain, {"says": "poison"})
    others = await h.engine.start_many([(Plain, {"says": "well"})] * OTHERS)

    async with h.engine.worker():
        await eventually(lambda: len(signs.ends) == OTHERS + 1)
        signs.ends[poison.id].set()
        await end_one_by_one(h, signs, others)
        await eventually(stands(h, poison, "failed"))

    [handled] = signs.handled
    assert "it hurts" in handled
