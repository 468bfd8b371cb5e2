"""M2: a role that may only connect to the database fills the server's queue of notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Ask, Await, Context, Done, Engine, Machine, step
from tests.support.own_server import own_server

NEARLY_FULL = 0.9
SOON = timedelta(milliseconds=100)
FILL = "select pg_notify('theirs', repeat('x', {}) || n) from generate_series(1, {}) n"


class Ping(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("pong")


class Waiting(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("went")


class Asking(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Ask:
        return Ask("manual", {}, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done(ctx.reply.value)


@pytest.fixture
async def full_database() -> AsyncIterator[str]:
    """A migrated database on a server with a small queue, which a role without rights has filled."""
    with own_server(max_notify_queue_pages="64") as server:
        url = server.url()
        await Engine(url, machines=[Ping, Waiting, Asking]).migrate()
        owner = await asyncpg.connect(url)
        await owner.execute("create role squatter login")
        reader, sender = [await asyncpg.connect(url, user="squatter") for _ in range(2)]
        await reader.execute("listen theirs")
        await reader.execute("begin; select 1")  # what it has not read stays in the queue
        for size, number in ((7000, 20), (1, 1)):
            await fill(sender, FILL.format(size, number))
        yield url
        for connection in (reader, sender, owner):
            await connection.close()


async def fill(sender: asyncpg.Connection, query: str) -> None:
    """Send until the queue takes no more."""
    with suppress(asyncpg.ProgramLimitExceededError):
        while True:
            await sender.execute(query)


async def test_a_full_notification_queue_stops_neither_workers_nor_callers(full_database: str) -> None:
    sql = await asyncpg.connect(full_database)

    async with Engine(full_database, machines=[Ping, Waiting, Asking]) as engine, engine.worker(poll=SOON):
        pinged = await sql.fetchval("select stepwell.start('Ping')")
        signalled = await sql.fetchval("select stepwell.start('Waiting', key => 'w')")
        asking, cancelled = await engine.start(Asking), await engine.start(Waiting)
        for id_ in (signalled, asking.id, cancelled.id):
            await engine.wait(id_, until="settled", timeout=20)
        [interaction] = (await engine.interactions.pending()).items

        await sql.fetchval("select stepwell.signal('go', key => 'w')")
        await sql.fetch("select stepwell.complete('7', $1)", interaction.id)
        await sql.fetchval("select stepwell.cancel($1)", cancelled.id)

        for id_ in (pinged, signalled, asking.id):
            assert (await engine.wait(id_, timeout=20)).status == "done"
        assert (await engine.get(cancelled.id)).status == "cancelled"
        assert await sql.fetchval("select pg_notification_queue_usage()") > NEARLY_FULL
    await sql.close()
