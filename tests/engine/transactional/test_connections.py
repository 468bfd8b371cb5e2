"""The connections of transactional steps: a pool of their own, given to each step as if it were new."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from stepwell import Context, Done, Machine, MissingExtra, step
from stepwell._store.database import WORKER
from tests.conftest import MakeHarness
from tests.engine.transactional.ledger import SESSIONS, note, notes, run

SETTINGS = ["work_mem", "role", "search_path", *(name for name in WORKER if name != "application_name")]


class Untidy(Machine):
    """Leaves its connection as no guest should, or looks at how it finds it."""

    @step(transactional=True)
    async def leave(self, ctx: Context[Any]) -> Done:
        for statement in (
            "set work_mem = '77MB'", "set enable_seqscan = off", "set search_path = pg_catalog",
            "create temp table scratch (n integer)", "select pg_advisory_lock(4711)", "listen gossip",
            "set role stepwell_untidy", "set local lock_timeout = '9s'", "set local jit = on",
        ):  # fmt: skip
            await run(ctx.connection, statement)
        return Done(await self._look(ctx))

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(await self._look(ctx))

    async def _look(self, ctx: Context[Any]) -> dict[str, Any]:
        seen = {name: await run(ctx.connection, f"select current_setting('{name}')") for name in SETTINGS}
        seen["scratch"] = await run(ctx.connection, "select to_regclass('pg_temp.scratch')::text")
        seen["advisory"] = await run(
            ctx.connection, "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        )
        seen["listens"] = await run(ctx.connection, "select count(*) from pg_listening_channels()")
        seen["pid"] = await run(ctx.connection, "select pg_backend_pid()")
        return seen


@pytest.fixture
async def untidy_role(url: str, make: MakeHarness) -> None:
    h = await make([])
    await h.sql("do $$ begin create role stepwell_untidy; exception when duplicate_object then null; end $$")


@pytest.mark.usefixtures("untidy_role")
@pytest.mark.parametrize("session", SESSIONS)
async def test_a_connection_comes_to_the_next_step_as_if_it_were_new(make: MakeHarness, session: str) -> None:
    """Also with the settings of our own statements gone: the author's queries are planned as usual."""
    h = await make([Untidy], transactional_session=session, transactional_pool=1)

    async with h.engine.worker():
        first = await (await h.engine.start(Untidy)).result(timeout=30)
        left = await (await h.engine.start(Untidy, step="leave")).result(timeout=30)
        second = await (await h.engine.start(Untidy)).result(timeout=30)

    assert (left["scratch"], left["advisory"], left["role"]) == ("scratch", 1, "stepwell_untidy")
    assert first == second
    assert (first["enable_seqscan"], first["plan_cache_mode"], first["role"]) == ("on", "auto", "none")
    assert (first["scratch"], first["advisory"], first["listens"]) == (None, 0, 0)


async def test_a_connection_whose_codecs_were_changed_is_not_used_again(make: MakeHarness) -> None:
    class Coding(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Done:
            shown = await ctx.connection.fetchval("select '[1]'::jsonb")
            await ctx.connection.set_type_codec("jsonb", encoder=str, decoder=len, schema="pg_catalog")
            return Done([shown, await ctx.connection.fetchval("select '[1]'::jsonb")])

    h = await make([Coding], transactional_pool=1)
    async with h.engine.worker():
        results = [await (await h.engine.start(Coding)).result(timeout=30) for _ in range(2)]

    assert results == [["[1]", 3]] * 2


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_connection_that_died_while_idle_is_replaced(make: MakeHarness, session: str) -> None:
    h = await make([Untidy], transactional_session=session, transactional_pool=1)

    async with h.engine.worker() as worker:
        first = await (await h.engine.start(Untidy)).result(timeout=30)
        await h.sql("select pg_terminate_backend($1)", first["pid"])
        second = await (await h.engine.start(Untidy)).result(timeout=30)

    assert first.pop("pid") != second.pop("pid")
    assert first == second
    assert worker.tally.committed == 2


class Holding(Machine):
    """Transactional steps that stay until they are let go, and plain ones that do not care."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, f"held {ctx.id}")
        ctx.resources["entered"].append(ctx.id)
        await ctx.resources["gate"].wait()
        return Done("held")

    @step
    async def plain(self, ctx: Context[Any]) -> Done:
        return Done("plain")


@pytest.mark.parametrize("session", SESSIONS)
async def test_plain_steps_and_their_commits_go_on_while_every_connection_is_taken(
    make: MakeHarness, session: str
) -> None:
    resources: dict[str, Any] = {"entered": [], "gate": asyncio.Event()}
    h = await make([Holding], transactional_session=session, transactional_pool=2, resources=resources)
    held = await h.engine.start_many([Holding] * 5)

    async with h.engine.worker({"default": 50}) as worker:
        plain = [await h.engine.start(Holding, step="plain") for _ in range(20)]
        results = [await handle.result(timeout=30) for handle in plain]
        entered = len(resources["entered"])
        resources["gate"].set()
        freed = [await handle.result(timeout=30) for handle in held]  # type: ignore[union-attr]

    assert results == ["plain"] * 20
    assert entered <= 2
    assert (freed, len(await notes(h)), worker.tally.committed) == (["held"] * 5, 5, 25)


async def test_no_connection_is_opened_without_a_transactional_step(make: MakeHarness) -> None:
    class Plain(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done()

    h = await make([Plain], transactional_session="sqlalchemy")
    async with h.engine.worker() as worker:
        assert worker._transactor is None


async def test_a_missing_sqlalchemy_is_told_when_the_worker_is_made(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy.ext.asyncio", None)
    monkeypatch.delitem(sys.modules, "stepwell._store.sessions", raising=False)
    h = await make([Untidy], transactional_session="sqlalchemy")

    with pytest.raises(MissingExtra, match=r"pip install 'stepwell\[sqlalchemy\]'") as refused:
        async with h.engine.worker():
            pass

    assert isinstance(refused.value, ImportError)
    assert refused.value.extra == "sqlalchemy"


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_database_that_defaults_to_repeatable_read_changes_nothing(
    make_harness: MakeHarness, session: str
) -> None:
    """Of the engine's connections: clients, workers and transactional steps; of a step itself: what it sees."""

    class Rival(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Done:
            return Done(await run(ctx.connection, "show transaction_isolation"))

    h = await make_harness([Rival], transactional_session=session)
    await h.sql(
        "do $$ begin execute format('alter database %I set default_transaction_isolation = ''repeatable read''', "
        "current_database()); end $$"
    )

    async with h.another_engine() as engine, engine.worker() as worker:
        result = await (await engine.start(Rival)).result(timeout=30)
        levels = []
        for database in (engine._opened, worker._database):
            async with database._acquired() as connection:
                levels.append(await connection.fetchval("show transaction_isolation"))

    assert [row["transaction_isolation"] for row in await h.sql("show transaction_isolation")] == ["repeatable read"]
    assert [result, *levels] == ["read committed"] * 3
