"""A role that may only connect to the database takes every advisory lock that it can guess or see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from stepwell import ConcurrencyLimit, Context, Done, Handle, Machine, RateLimit, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.sql_and_drivers.roles import connected, role

LIMITS = [ConcurrencyLimit("one", 1), RateLimit("few", 1000, per=timedelta(seconds=1))]
NEEDS: list[dict[str, Any]] = [
    {},
    {"concurrency_limit": "one"},
    {"rate_limit": "few"},
    {"concurrency_key": "busy"},
    {"concurrency_key": "busy", "concurrency_limit": "one", "rate_limit": "few"},
]
# As the schema made them from names in the source: the kind of lock in the upper bits.
SPACES = ["engine", "queue", "key", "limit name", "rate name", "limit", "rate"]
NAMES = ["default", "busy", "one", "few", "machines", "migrate", "reaper", "pruner"]
GUESSED = """
select pg_advisory_lock((s.place - 1) << 60 | (hashtextextended(n.name, 0) & ((1::bigint << 60) - 1)))
from unnest($1::text[]) with ordinality as s(name, place), unnest($2::text[]) as n(name)
"""
SEEN = """
select l.classid::bigint << 32 | l.objid::bigint as number
from pg_locks l
where l.locktype = 'advisory' and l.pid <> pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
"""


class Ping(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("pong")


@asynccontextmanager
async def squatter(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    async with role(h, "squatter") as url, connected(url) as connection:
        yield connection


@asynccontextmanager
async def watching(connection: asyncpg.Connection, seen: set[int]) -> AsyncIterator[None]:
    """Read the advisory locks repeatedly, while the block lasts."""
    over = asyncio.Event()

    async def look() -> None:
        while not over.is_set():
            seen.update(row["number"] for row in await connection.fetch(SEEN))

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        over.set()
        await looking


async def all_kinds(h: Harness) -> list[Any]:
    """The results of instances that need each kind of lock, by a worker that is started and stopped."""
    async with h.engine.worker({"default": 5}):
        handles: list[Handle] = [await h.engine.start(Ping, **needs) for needs in NEEDS for _ in range(3)]
        results = [await handle.result(timeout=20) for handle in handles]
        await h.engine.queues.pause("default", timeout=20)
        await h.engine.queues.resume("default", timeout=20)
        await h.engine.limits.set("one", n=2, timeout=20)
        await h.engine.limits.reset("one", timeout=20)
    return results


async def test_a_role_that_can_only_connect_stops_no_work(make_harness: MakeHarness) -> None:
    h = await make_harness([Ping], limits=LIMITS, reap=timedelta(seconds=0.2))
    seen: set[int] = set()

    async with squatter(h) as connection:
        async with watching(connection, seen):
            at_first = await all_kinds(h)
        await connection.fetch(GUESSED, SPACES, NAMES)
        await connection.fetch("select pg_advisory_lock(number) from unnest($1::bigint[]) as number", sorted(seen))
        results = await all_kinds(h)
        await h.engine.migrate(timeout=20)

    assert at_first == results == ["pong"] * 3 * len(NEEDS)


async def is_gone(h: Harness, handle: Handle) -> bool:
    return not await h.sql("select from stepwell.instances where id = $1", handle.id)


async def test_a_role_that_can_only_connect_stops_no_reaper_and_no_pruner(make_harness: MakeHarness) -> None:
    h = await make_harness([Ping], reap=timedelta(seconds=0.2), lease=timedelta(seconds=1.5),
                           heartbeat=timedelta(seconds=0.3), prune=timedelta(seconds=0.2))  # fmt: skip
    ended = await h.engine.start(Ping)
    async with h.engine.worker({"default": 1}):
        await ended.result(timeout=20)
    await h.sql("update stepwell.instances set finished_at = now() - interval '1 year'")
    lost = await h.engine.start(Ping)
    await h.sql("update stepwell.instances set status = 'executing', worker_id = 4711, claimed_at = now(), fence = 1 "
                "where id = $1", lost.id)

    async with squatter(h) as connection:
        await connection.fetch(GUESSED, SPACES, NAMES)
        async with h.engine.worker({"default": 1}):
            result = await lost.result(timeout=20)
            await eventually(lambda: is_gone(h, ended))

    assert result == "pong"


