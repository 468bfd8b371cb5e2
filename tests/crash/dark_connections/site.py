"""An engine behind a network that forgets connections, and its machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from stepwell import Context, Done, Engine, Machine, Next, step
from stepwell.testing import Harness
from tests.support.dark_proxy import DarkProxy

LEASE = 6.0
ANSWER = min(LEASE / 2, 10.0)
LOCKS = min(LEASE, 10.0)
POLL = 5.0
REAP = LEASE / 2
STALLED_FOR = 10.0
MARGIN = 6.0  # seconds, for a machine under load
LEFT = """
select from pg_stat_activity
where datname = current_database() and application_name ~ '^stepwell (worker|step)'
  and state like 'idle in transaction%' and state_change < pg_catalog.now() - interval '0.5 s'"""
STALLED = """
select from pg_stat_activity
where datname = current_database() and application_name ~ '^stepwell (worker|step)'
  and state = 'active' and wait_event = 'ClientRead' and state_change < clock_timestamp() - interval '0.5 s'"""
SLEEPS = """
select from pg_stat_activity
where datname = current_database() and state = 'active' and query like 'select pg_sleep%'"""
FOOTPRINTS = "create table footprints (instance bigint)"


class Walk(Machine, initial="one"):
    """Two steps that count their runs in the resources."""

    @step
    async def one(self, ctx: Context[Any]) -> Next:
        ctx.resources[ctx.id, ctx.step] += 1
        return Next(self.two)

    @step
    async def two(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        return Done("walked")


class Booked(Machine):
    """A step that shares its transaction with its outcome."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        run = ctx.connection.execute if hasattr(ctx.connection, "fetchrow") else _by_sqlalchemy(ctx.connection)
        await run(f"insert into footprints values ({ctx.id})")
        return Done("booked")


class Slow(Machine):
    """A transactional step with a statement of its own that takes as long as its state says; it fails by any error."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, float]]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        run = ctx.connection.execute if hasattr(ctx.connection, "fetchrow") else _by_sqlalchemy(ctx.connection)
        await run(f"select pg_sleep({ctx.state['seconds'] if ctx.resources[ctx.id, ctx.step] == 1 else 0})")
        return Done("slept")


def _by_sqlalchemy(session: Any) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - an extra

    return lambda sql: session.execute(text(sql))


@dataclass
class Site:
    """An engine that reaches its database through a proxy that forgets, and the counts of its steps."""

    harness: Harness
    proxy: DarkProxy
    engine: Engine
    runs: Counter[tuple[int, str]]

    async def left(self) -> bool:
        """Whether the server holds an abandoned transaction."""
        return bool(await self.harness.sql(LEFT))

    async def stalled(self) -> bool:
        """Whether the server waits for the rest of a statement."""
        return bool(await self.harness.sql(STALLED))


async def is_not(condition: Any) -> bool:
    return not await condition()
