"""The schema is a setting: two engines with two schemas in one database share nothing else."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy.ext.asyncio import create_async_engine

from stepwell import (
    Ask,
    Await,
    ConcurrencyLimit,
    Context,
    Done,
    Engine,
    Handle,
    Machine,
    NotFound,
    SchemaOutdated,
    SchemaTooNew,
    SettingError,
    Status,
    step,
)
from stepwell._client.admin import schema
from stepwell._store.migrate import latest_version
from stepwell._store.testing import databases
from stepwell.config import RESERVED
from stepwell.testing import Harness
from tests.support.dump_schema import dump_of
from tests.support.waiting import eventually

BOTH = ("shop", "depot")
NEVER = timedelta(hours=1)
LIMIT = ConcurrencyLimit("press", 1)


@dataclass
class Stage:
    """A gate where the orders of one engine wait, and the orders that have reached it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    there: list[int] = field(default_factory=list)


class Order(Machine):
    """Waits at the gate, then for its signal, then for a reply."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        ctx.resources.there.append(ctx.id)
        await ctx.resources.gate.wait()
        return Await("paid", then=self.ask)

    @step
    async def ask(self, ctx: Context[Any]) -> Ask:
        return Ask("manual", {"paid": True}, reply=str, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done([ctx.reply.value, ctx.state])


class Note(Machine):
    """Writes a row in the transaction of its outcome."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        text = "insert into public.notes values (1)"
        await ctx.connection.execute(text if isinstance(ctx.connection, PoolConnectionProxy) else sqlalchemy.text(text))
        return Done("noted")


@dataclass
class Site:
    """One database with two schemas of ours and no third one."""

    url: str
    engines: list[Engine]
    stages: list[Stage]

    async def sql(self, text: str, *args: Any) -> list[Any]:
        return await databases.query(self.url, text, *args)


def engine(url: str, name: str, stage: Stage, **settings: Any) -> Engine:
    """Polling finds nothing here: only notifications can."""
    return Engine(url, schema=name, machines=[Order, Note], limits=[LIMIT], resources=stage, poll=NEVER, max_poll=NEVER,
                  **settings)  # fmt: skip


@pytest.fixture
async def site(url_of_nothing: str) -> AsyncIterator[Site]:
    stages = [Stage(), Stage()]
    async with AsyncExitStack() as stack:
        engines = [engine(url_of_nothing, name, stage) for name, stage in zip(BOTH, stages, strict=True)]
        for one in engines:
            await one.migrate()
            await stack.enter_async_context(one)
        yield Site(url_of_nothing, engines, stages)


@pytest.fixture
async def url_of_nothing() -> AsyncIterator[str]:
    """A database in which nothing was migrated."""
    async with Harness() as h:
        name = f"stepwell_test_{secrets.token_hex(6)}"
        await databases.clone(h.url, "template0", name)
        yield databases.sibling(h.url, name)
        await databases.drop(h.url, name)


async def has_asked(handle: Handle[Any]) -> bool:
    return (await handle.get()).status is Status.AWAITING_EXTERNAL


async def test_engines_with_two_schemas_share_nothing(site: Site) -> None:
    """Both run the same orders, with the same keys and limits, at the same time."""
    handles = [
        await one.start(Order, {"of": name}, key="order:7", concurrency_key="account:1", concurrency_limit="press")
        for one, name in zip(site.engines, BOTH, strict=True)
    ]
    async with AsyncExitStack() as stack:
        for one in site.engines:
            await stack.enter_async_context(one.worker())
        await eventually(lambda: all(stage.there for stage in site.stages))  # neither waits for the key of the other
        for stage in site.stages:
            stage.gate.set()
        for handle in handles:
            await handle.wait(timeout=20, until="settled")

        await site.engines[0].signal("order:7", "paid", 100)
        await eventually(lambda: has_asked(handles[0]))
        alone = [(await handle.get()).status for handle in handles]
        await site.engines[1].signal("order:7", "paid", 200)
        await eventually(lambda: has_asked(handles[1]))
        asked = [(await one.interactions.pending()).items for one in site.engines]
        for one, [question] in zip(site.engines, asked, strict=True):
            await one.complete(interaction=question.id, reply=one.settings.schema)
        results = [await handle.result(timeout=20) for handle in handles]

    assert alone == [Status.AWAITING_EXTERNAL, Status.AWAITING_SIGNAL]
    assert results == [["shop", {"of": "shop"}], ["depot", {"of": "depot"}]]
    assert [len(await one.insights.workers()) for one in site.engines] == [1, 1]


async def test_a_pause_and_a_limit_of_one_schema_do_not_affect_another(site: Site) -> None:
    shop, depot = site.engines
    await shop.queues.pause("default", reason="stocktaking")
    await shop.limits.set("press", n=0)

    held = await shop.start(Order, concurrency_limit="press")
    free = await depot.start(Order, concurrency_limit="press")
    async with shop.worker(), depot.worker():
        await eventually(lambda: site.stages[1].there)
        status = (await held.get()).status
        site.stages[1].gate.set()
        await free.wait(timeout=20, until="settled")

    assert status is Status.RUNNABLE
    assert site.stages[0].there == []
    assert [limit.n for limit in await depot.limits.list()] == [1]


async def test_a_notification_of_one_schema_wakes_no_worker_of_another(site: Site) -> None:
    heard: list[tuple[str, str]] = []
    listener = await asyncpg.connect(site.url)
    for name in BOTH:
        await listener.add_listener(f"{name}_work", lambda _c, _p, channel, queue: heard.append((channel, queue)))

    await site.engines[0].start(Order)
    async with listener.transaction():
        await listener.execute("select depot.start('Order')")
    await eventually(lambda: len(heard) == 2)
    await listener.close()

    assert sorted(heard) == [("depot_work", "default"), ("shop_work", "default")]


@pytest.mark.parametrize("session", ["asyncpg", "sqlalchemy"])
async def test_a_transactional_step_commits_into_its_own_schema(site: Site, session: str) -> None:
    await site.sql("create table public.notes (id integer)")
    depot = site.engines[1]

    async with depot.worker(transactional_session=session):
        result = await (await depot.start(Note)).result(timeout=20)

    assert result == "noted"
    assert len(await site.sql("select from public.notes")) == 1


async def test_calls_on_a_callers_connection_go_to_the_schema_of_the_engine(site: Site) -> None:
    shop, depot = site.engines
    connection = await asyncpg.connect(site.url)
    async with connection.transaction():
        await shop.start(Order, key="asyncpg", connection=connection)
        await depot.start(Order, key="both", connection=connection)
    async with await psycopg.AsyncConnection.connect(site.url) as other:
        await shop.start(Order, key="psycopg", connection=other)
        await shop.start(Order, key="gone", connection=other)
        await shop.cancel("gone", connection=other)
    alchemy = create_async_engine(site.url.replace("postgresql://", "postgresql+asyncpg://"))
    async with alchemy.begin() as third:
        await shop.start(Order, key="sqlalchemy", connection=third)
        await shop.signal("asyncpg", "paid", connection=third)
    await alchemy.dispose()
    await connection.close()

    keys = [{row.key for row in (await one.insights.list()).items} for one in site.engines]
    assert keys == [{"asyncpg", "psycopg", "gone", "sqlalchemy"}, {"both"}]


async def test_a_blocking_engine_uses_its_schema(site: Site) -> None:
    def start() -> int:
        stage = Stage()
        with engine(site.url, "depot", stage).sync as sync, psycopg.connect(site.url) as connection:
            sync.start(Order, key="mine", connection=connection)
            return sync.start(Order, key="own").id

    id_ = await asyncio.to_thread(start)

    assert (await site.engines[1].get(id_)).key == "own"
    assert {row.key for row in (await site.engines[1].insights.list()).items} == {"mine", "own"}
    with pytest.raises(NotFound):
        await site.engines[0].get(id_)


async def test_the_client_role_of_one_schema_may_not_call_the_other(site: Site) -> None:
    [row] = await site.sql("select current_database() as name")
    roles = [f"{name}_client_{row['name']}" for name in BOTH]

    rights = [
        [(await site.sql("select has_schema_privilege($1, $2, 'usage') as may", role, name))[0]["may"] for name in BOTH]
        for role in roles
    ]

    assert rights == [[True, False], [False, True]]


@pytest.mark.parametrize("name", ["i", "start", "given", "time", "_", "s" * 28])
async def test_a_schema_name_may_be_long_or_a_name_that_our_sql_uses(url_of_nothing: str, name: str) -> None:
    one = Engine(url_of_nothing, schema=name, machines=[Note])
    await one.migrate()
    connection = await asyncpg.connect(url_of_nothing)
    async with one:
        by_sql = await connection.fetchval(f"select {name}.start('Note', key => 'a')")
        by_python = await one.start(Note, key="b")
        cancelled = [await connection.fetchval(f"select {name}.cancel(key => 'b')"), await one.cancel("a")]
    role = await connection.fetchval(f"select client_role from {name}.meta")
    may = await connection.fetchval("select has_schema_privilege($1, $2, 'usage')", role, name)
    await connection.close()

    assert (by_sql, by_python.id, cancelled) == (1, 2, [True, True])
    assert (role.startswith(f"{name}_client_"), len(role) <= 63, may) == (True, True, True)


async def test_each_schema_has_its_own_version(site: Site) -> None:
    shop, depot = site.engines
    await site.sql("update shop.meta set version = 99, oldest_code = 99")

    with pytest.raises(SchemaTooNew, match="the schema 'shop' is at version 99"):
        await shop.check()
    assert await depot.check() == latest_version()
    with pytest.raises(SchemaOutdated, match="the schema 'lager' is missing"):
        await engine(site.url, "lager", Stage()).check()


async def test_the_script_and_migrate_create_the_same_objects_in_any_schema(site: Site) -> None:
    """And the same as in the schema `stepwell`, but for the name."""
    expected = (files("stepwell._store") / "schema.sql").read_text("utf-8")
    connection = await asyncpg.connect(site.url)
    name = await connection.fetchval("select current_database()")
    await connection.execute(schema.sql(0, f"shop_client_{name}", "lager"))
    await connection.close()

    made = [await dump_of(site.url, name) for name in ("shop", "lager")]

    assert made == [re.sub(r"\bstepwell(?=[._;`])", name, expected) for name in ("shop", "lager")]


async def test_no_function_names_another_schema(site: Site) -> None:
    """Nor is there one: what named it would fail."""
    named = await site.sql("select p.proname from pg_proc p where p.pronamespace = 'shop'::regnamespace "
                           r"and p.prosrc ~ '\mstepwell\M[._]'")  # fmt: skip
    schemas = await site.sql("select nspname from pg_namespace where nspname !~ '^pg_|^information_schema$|^public$'")

    assert named == []
    assert {row["nspname"] for row in schemas} == {*BOTH}


async def test_a_harness_can_have_its_own_schema(site: Site) -> None:
    async with Harness([Order], schema="depot") as h:
        await h.sql("drop schema stepwell cascade")
        handle = await h.engine.start(Order, delay=timedelta(hours=1))
        h.resources = Stage()
        h.resources.gate.set()

        await h.drain()
        before = (await handle.get()).status
        await h.advance(timedelta(hours=2))
        await h.drain()

        assert (before, (await handle.get()).status) == (Status.RUNNABLE, Status.AWAITING_SIGNAL)


async def test_a_worker_has_the_schema_of_its_engine(site: Site) -> None:
    with pytest.raises(SettingError, match="belongs to the engine"):
        async with site.engines[0].worker(schema="depot"):
            pass


async def test_every_reserved_word_of_postgres_is_refused(site: Site) -> None:
    rows = await site.sql("select word from pg_get_keywords() where catcode in ('R', 'T')")

    assert {row["word"] for row in rows} <= RESERVED
