"""Delays and timeouts of a transactional step count from its outcome, however long the step has run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Ask, Await, Context, Done, Machine, Next, Outcome, Retry, Spawn, step
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
RETURNED = "create table public.returned as select pg_catalog.clock_timestamp() as at"


class Leaf(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class Long(Machine, initial="end"):
    """Notes when its step is about to return, in the step's own transaction: later than that began."""

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()

    @step(transactional=True)
    async def wait(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Await("go", then=self.end, timeout=HOUR))

    @step(transactional=True)
    async def again(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Retry(HOUR))

    @step(transactional=True)
    async def later(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Next(self.end, delay=HOUR))

    @step(transactional=True)
    async def ask(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Ask("manual", {}, reply=int, then=self.end, timeout=HOUR))

    @step(transactional=True)
    async def spawn(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Spawn([Leaf.child(delay=HOUR)], then=self.end))

    @step(transactional=True)
    async def spawn_keyed(self, ctx: Context[Any]) -> Outcome:
        return await self._return(ctx, Spawn([Leaf.child(key="leaf", delay=HOUR)], then=self.end))

    async def _return(self, ctx: Context[Any], outcome: Outcome) -> Outcome:
        await ctx.connection.execute(RETURNED)
        return outcome


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("wait", "select deadline from stepwell.instances"),
        ("again", "select due_at from stepwell.instances"),
        ("later", "select due_at from stepwell.instances"),
        ("ask", "select deadline from stepwell.interactions"),
        ("spawn", "select due_at from stepwell.instances where parent_id is not null"),
        ("spawn_keyed", "select due_at from stepwell.instances where parent_id is not null"),
    ],
)
async def test_an_outcome_stores_instants_that_count_from_its_statement(
    make_harness: MakeHarness, name: str, stored: str
) -> None:
    h = await make_harness([Long, Leaf])
    await h.engine.start(Long, step=name)

    async with h.engine.worker() as worker:
        await eventually(lambda: worker.stats.committed == 1)
        [(instant, returned)] = await h.sql(f"select ({stored}) as instant, at from public.returned")

    assert instant >= returned + HOUR


async def test_the_clock_of_statements_moves_with_that_of_transactions(make_harness: MakeHarness) -> None:
    h = await make_harness([Long, Leaf])

    await h.advance(HOUR * 24)
    [(ahead,)] = await h.sql("select stepwell.instant() - pg_catalog.statement_timestamp()")

    assert ahead == HOUR * 24
