"""Machines for tests with real processes: every run of a step leaves a row in `effects`, committed at once."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from stepwell import ConcurrencyLimit, Context, Done, Machine, Next, RateLimit, Retry, step

CREATE_EFFECTS = """
create table if not exists public.effects (
  token text primary key, number bigint generated always as identity,
  instance bigint not null, step text not null, attempt integer not null, crashes integer not null,
  pid integer not null, note text not null, recorded_at timestamptz not null default clock_timestamp()
)
"""
CREATE_LEDGER = """
create table public.ledger (instance bigint not null);
create table public.counter (booked integer not null);
insert into public.counter values (0);
"""
_RECORD = """
insert into public.effects (token, instance, step, attempt, crashes, pid, note)
select $1, i.id, $3, $4, i.crashes, $5, $6 from stepwell.instances i where i.id = $2
on conflict (token) do nothing
"""
_AWAY = (
    OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
)  # fmt: skip
_IS_NOTED = "select exists (select from public.effects where note = $1)"
_PAUSE = 0.05
_INSIDE = 0.01  # long enough that all slots of a limit are taken at once


class Effects:
    """The effects of steps, through connections of their own. An outage delays a record, it never doubles it."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._has_gathered = False

    def acquire(self) -> Any:
        """A connection of one's own."""
        return self._pool.acquire()

    async def record(self, ctx: Context[Any], note: str = "ran") -> None:
        token = secrets.token_hex(8)
        await self._ask(_RECORD, token, ctx.id, ctx.step, ctx.attempt, os.getpid(), note)

    async def tell(self, sql: str, *args: object) -> None:
        """Send a statement that commits at once."""
        await self._ask(sql, *args)

    async def gathered(self, processes: int) -> None:
        """Wait until steps of this number of processes have recorded an effect."""
        while not self._has_gathered:
            await asyncio.sleep(_PAUSE)
            self._has_gathered = await self._ask("select count(distinct pid) from public.effects") >= processes

    async def noted(self, note: str) -> None:
        """Wait until a test has written that note."""
        while not await self._ask(_IS_NOTED, note):  # noqa: ASYNC110 - a row announces nothing
            await asyncio.sleep(_PAUSE)

    async def _ask(self, sql: str, *args: object) -> Any:
        while True:
            try:
                return await self._pool.fetchval(sql, *args)
            except _AWAY:
                await asyncio.sleep(_PAUSE)


def effects_in(url: str) -> Callable[[], AbstractAsyncContextManager[Effects]]:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Effects]:
        async with asyncpg.create_pool(url, min_size=1, max_size=5) as pool:
            yield Effects(pool)

    return lifespan


class Trail(Machine, initial="first"):
    """Three steps, each of which leaves its mark in the state; the one named `dies_in` kills its first worker."""

    @dataclass
    class State:
        marks: list[str] = field(default_factory=list)
        dies_in: str = ""

    @step
    async def first(self, ctx: Context[State]) -> Next:
        await self._leave_mark(ctx)
        return Next(self.second)

    @step
    async def second(self, ctx: Context[State]) -> Next:
        await self._leave_mark(ctx)
        return Next(self.third)

    @step
    async def third(self, ctx: Context[State]) -> Done:
        await self._leave_mark(ctx)
        return Done(ctx.state.marks)

    async def _leave_mark(self, ctx: Context[State]) -> None:
        await ctx.resources.record(ctx)
        if ctx.state.dies_in == ctx.step and ctx.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.state.marks.append(ctx.step)


class Killer(Machine, initial="kill"):
    """Ends every worker that runs it."""

    @step
    async def kill(self, ctx: Context[Any]) -> Done:
        os.kill(os.getpid(), signal.SIGKILL)
        return Done()


class Canceller(Machine, initial="act"):
    """Cancels tasks of its process, or stops its loop, and waits for ever."""

    @dataclass
    class State:
        how: str = "all"  # "all" tasks, all "but main", "main alone", or "stop" the loop

    @step
    async def act(self, ctx: Context[State]) -> Done:
        await ctx.resources.record(ctx)
        if ctx.state.how == "stop":
            asyncio.get_running_loop().stop()
        else:
            for task in asyncio.all_tasks():
                is_main = task.get_name() == "main"
                if ctx.state.how == "all" or is_main == (ctx.state.how == "main alone"):
                    task.cancel()
        await asyncio.Event().wait()
        return Done()

    async def handle(self, error: BaseException, ctx: Context[State]) -> Done:
        return Done("handled")


class Neighbour(Machine, initial="work"):
    """Works for a moment; is cut off if its process ends meanwhile."""

    @step
    async def work(self, ctx: Context[Any]) -> Done:
        await asyncio.sleep(_PAUSE)
        return Done("worked")

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Retry:
        return Retry()


class Endless(Machine, initial="wait"):
    """Runs until it is cancelled."""

    @step
    async def wait(self, ctx: Context[Any]) -> Done:
        await ctx.resources.record(ctx)
        await asyncio.Event().wait()
        return Done()


class Innocent(Machine, initial="work"):
    """Does a moment's work."""

    @step
    async def work(self, ctx: Context[Any]) -> Done:
        await ctx.resources.record(ctx)
        return Done("worked")


class Frozen(Machine, initial="hang"):
    """Hangs in its first worker until it is told to stop; if `stubborn`, it then returns as if it were done."""

    @dataclass
    class State:
        stubborn: bool = False

    @step
    async def hang(self, ctx: Context[State]) -> Done:
        await ctx.resources.record(ctx)
        if ctx.attempt > 0:
            return Done("in time")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as told:
            await ctx.resources.record(ctx, f"told: {told}")
            if not ctx.state.stubborn:
                raise
        return Done("late")


class Gated(Machine, initial="wait"):
    """Returns its name as soon as a test has noted that it may."""

    @dataclass
    class State:
        name: str

    @step
    async def wait(self, ctx: Context[State]) -> Done:
        await ctx.resources.record(ctx, f"{ctx.state.name} runs")
        await ctx.resources.noted(f"{ctx.state.name} may end")
        return Done(ctx.state.name)


class Shared(Machine, initial="meet"):
    """Two steps; the first one waits until two workers run it."""

    @step
    async def meet(self, ctx: Context[Any]) -> Next:
        await ctx.resources.record(ctx)
        await ctx.resources.gathered(2)
        return Next(self.part)

    @step
    async def part(self, ctx: Context[Any]) -> Done:
        await ctx.resources.record(ctx)
        return Done("shared")


class Booking(Machine, initial="book"):
    """Writes itself into the ledger, and counts there: in its own transaction, or as a plain step by its resources."""

    @dataclass
    class State:
        dies_in_step: bool = False

    @step(transactional=True)
    async def book(self, ctx: Context[State]) -> Next:
        await book(ctx.connection, ctx)
        return self._go_on(ctx)

    @step
    async def book_plainly(self, ctx: Context[State]) -> Next:
        async with ctx.resources.acquire() as connection:
            await book(connection, ctx)
        return self._go_on(ctx)

    def _go_on(self, ctx: Context[State]) -> Next:
        if ctx.state.dies_in_step and ctx.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return Next(self.end)

    @step
    async def end(self, ctx: Context[State]) -> Done:
        return Done("booked")


async def book(connection: Any, ctx: Context[Any]) -> None:
    """Write into the ledger through an asyncpg connection or an SQLAlchemy session."""
    statements = (f"insert into public.ledger values ({ctx.id})", "update public.counter set booked = booked + 1")
    for statement in statements:
        if isinstance(connection, asyncpg.Connection):
            await connection.execute(statement)
        else:
            from sqlalchemy import text  # noqa: PLC0415 - most processes of the tests start without it

            await connection.execute(text(statement))


class Narrow(Machine, initial="pass_through"):
    """Records when its step began and ended, by the database's clock; a step killed inside has no end."""

    @step
    async def pass_through(self, ctx: Context[Any]) -> Done:
        token = secrets.token_hex(8)
        await ctx.resources.tell(
            "insert into public.spans values ($1, $2, $3, clock_timestamp())", token, ctx.id, os.getpid()
        )
        await asyncio.sleep(_INSIDE)
        await ctx.resources.tell("update public.spans set ended = clock_timestamp() where token = $1", token)
        return Done()


CREATE_SPANS = """
create table public.spans (
  token text primary key, instance bigint, pid integer, began timestamptz, ended timestamptz
)
"""
LIMITS = [ConcurrencyLimit("narrow", 6), RateLimit("narrow", 400, burst=10)]
MACHINES = [Trail, Killer, Canceller, Neighbour, Endless, Innocent, Frozen, Gated, Shared, Booking, Narrow]
