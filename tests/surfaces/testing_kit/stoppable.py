"""Machines for tests of `explore_stops`; in a module, because other processes import them."""

from __future__ import annotations

from typing import Any

import asyncpg

from stepwell import Context, Done, Machine, Spawn, step
from stepwell.testing import Harness

CREATE_LEDGER = "create table if not exists public.ledger (instance bigint not null)"
BOOK = "insert into public.ledger values ($1)"


class Leaf(Machine, initial="grow"):
    """A child."""

    @step
    async def grow(self, ctx: Context[Any]) -> Done:
        return Done("grown")


class Hasty(Machine, initial="book"):
    """Writes the ledger on a connection of its own, before its outcome is committed."""

    @step
    async def book(self, ctx: Context[dict[str, str]]) -> Spawn:
        connection = await asyncpg.connect(ctx.state["url"])
        await connection.execute(BOOK, ctx.id)
        await connection.close()
        return Spawn([Leaf.child()], then=self.end)

    @step
    async def end(self, ctx: Context[dict[str, str]]) -> Done:
        return Done([child.result for child in ctx.children])


class Careful(Hasty, initial="book"):
    """Writes the ledger in the transaction of its outcome."""

    @step(transactional=True)
    async def book(self, ctx: Context[dict[str, str]]) -> Spawn:
        await ctx.connection.execute(BOOK, ctx.id)
        return Spawn([Leaf.child()], then=self.end)


async def booked(h: Harness) -> int:
    """How many ledger entries there are."""
    [[number]] = await h.sql("select count(*) from public.ledger")
    return int(number)
