"""A harness's database: its own, empty, and recycled from a used one only if nothing but rows was changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Machine, step
from stepwell._store.testing import databases
from stepwell._store.testing.databases import Registrar
from stepwell.testing import Harness
from stepwell.testing.databases.pool import database_pool
from tests.support.waiting import eventually

TABLES = ("instances", "instance_data", "signals", "tombstones", "machines", "workers")


class Greeting(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("hello")


@pytest.fixture
async def registrar() -> AsyncIterator[Registrar]:
    """One of this test's own, on the same server as all harnesses."""
    url = await database_pool().take()
    registrar = Registrar(databases.sibling(url, "postgres"))
    await registrar.open()
    yield registrar
    await registrar.close()
    database_pool().give_back(url)


async def test_a_used_database_is_as_good_as_new(registrar: Registrar) -> None:
    used = await registrar.clone()
    url = databases.sibling(registrar.url, used)
    async with Engine(url, machines=[Greeting]) as engine:
        for _ in range(3):
            await engine.start(Greeting)
        async with engine.worker():
            await (await engine.start(Greeting, key="a")).result(timeout=30)
    await databases.move_clock(url, timedelta(days=3))
    await databases.query(url, "analyze stepwell.instances")

    fresh = await registrar.recycle(used)

    assert fresh is not None
    url = databases.sibling(registrar.url, fresh)
    counts = [(await databases.query(url, f"select count(*) from stepwell.{table}"))[0][0] for table in TABLES]
    [(clock,)] = await databases.query(url, "select stepwell.now() - pg_catalog.now()")
    [(statistics,)] = await databases.query(url, "select count(*) from pg_stats where schemaname = 'stepwell'")
    assert (counts, clock, statistics) == ([0] * len(TABLES), timedelta(0), 0)
    async with Engine(url, machines=[Greeting]) as engine:
        assert (await engine.start(Greeting)).id == 1
    await registrar.drop(fresh)


@pytest.mark.parametrize(
    "change",
    [
        "create table mine (n int)",
        "create schema mine",
        "alter table stepwell.instances add column mine int",
        "update stepwell.meta set version = 0",
        "drop index stepwell.instances_claim",
    ],
)
async def test_a_database_with_a_changed_schema_is_not_used_again(
    registrar: Registrar, change: str
) -> None:
    used = await registrar.clone()
    await databases._administer(databases.sibling(registrar.url, used), change)

    assert await registrar.recycle(used) is None

    left = await databases.query(registrar.url, "select datname from pg_database where datname ~ $1", registrar._token)
    assert left == []


async def test_databases_of_a_killed_process_are_dropped_by_the_next_one(registrar: Registrar) -> None:
    dead = Registrar(registrar.url)
    await dead.open()
    left = await dead.clone()
    living = await registrar.clone()
    assert dead._connection is not None
    dead._connection.terminate()
    await eventually(lambda: is_gone(registrar.url, dead))

    successor = Registrar(registrar.url)
    await successor.open()

    names = {row["datname"] for row in await databases.query(registrar.url, "select datname from pg_database")}
    assert (left in names, living in names) == (False, True)
    await successor.close()
    await registrar.drop(living)


async def is_gone(url: str, dead: Registrar) -> bool:
    """Whether the server has noticed that a process is dead."""
    name = f"harness {dead._token}"
    return not await databases.query(url, "select from pg_stat_activity where application_name = $1", name)


async def test_two_harnesses_have_two_databases() -> None:
    async with Harness([Greeting]) as one, Harness([Greeting]) as other:
        await one.engine.start(Greeting, key="a")

        assert one.url != other.url
        assert await other.sql("select * from stepwell.instances") == []

