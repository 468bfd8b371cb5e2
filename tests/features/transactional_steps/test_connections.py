"""The connections of transactional steps: a pool of their own, given to each step as if it were new."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, MissingExtra, Next, step
from stepwell._store.connection.pool import WORKER
from tests.conftest import MakeHarness
from tests.features.transactional_steps.ledger import SESSIONS, note, notes, run

SETTINGS = ["work_mem", "role", "search_path", *(name for name in WORKER if name != "application_name")]


class Untidy(Machine):
    """Leaves its connection in a bad state, or reads the state in which it finds it."""

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
async def untidy_role(make: MakeHarness) -> None:
    h = await make([])
    await h.sql("do $$ begin create role stepwell_untidy; exception when duplicate_object then null; end $$")


@pytest.mark.usefixtures("untidy_role")
@pytest.mark.parametrize("session", SESSIONS)
async def test_a_connection_is_reset_before_the_next_step(make: MakeHarness, session: str) -> None:
    """The settings of our own statements are reset too: the author's queries are planned as usual."""
    h = await make([Untidy], transactional_session=session, transactional_pool=1)

    async with h.engine.worker():
        first = await (await h.engine.start(Untidy)).result(timeout=30)
        left = await (await h.engine.start(Untidy, step="leave")).result(timeout=30)
        second = await (await h.engine.start(Untidy)).result(timeout=30)

    assert (left["scratch"], left["advisory"], left["role"]) == ("scratch", 1, "stepwell_untidy")
    assert first == second
    assert (first["enable_seqscan"], first["plan_cache_mode"], first["role"]) == ("on", "auto", "none")
    assert (first["scratch"], first["advisory"], first["listens"]) == (None, 0, 0)


async def test_a_connection_with_changed_codecs_is_not_used_again(make: MakeHarness) -> None:
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
    assert worker.stats.committed == 2


class Holding(Machine):
    """Transactional steps that wait until they are released, and other steps that do not."""

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
async def test_other_steps_commit_while_every_transactional_connection_is_taken(
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
    assert (freed, len(await notes(h)), worker.stats.committed) == (["held"] * 5, 5, 25)


async def test_no_connection_is_opened_without_a_transactional_step(make: MakeHarness) -> None:
    class Plain(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done()

    h = await make([Plain], transactional_session="sqlalchemy")
    async with h.engine.worker() as worker:
        assert worker._graph.committing.transactional_runner is None


async def test_a_missing_sqlalchemy_is_reported_when_the_worker_is_created(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy.ext.asyncio", None)
    monkeypatch.delitem(sys.modules, "stepwell._store.step_transaction.sqlalchemy", raising=False)
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
            assert database.pool is not None
            async with database.pool.acquire() as connection:
                levels.append(await connection.fetchval("show transaction_isolation"))

    assert [row["transaction_isolation"] for row in await h.sql("show transaction_isolation")] == ["repeatable read"]
    assert [result, *levels] == ["read committed"] * 3


class Chain(Machine):
    """Notes the server process of its connection, three steps in a row."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Next:
        return await self._note_pid(ctx, Next(self.plain, delay=timedelta(milliseconds=ctx.state["delay"])))

    @step
    async def plain(self, ctx: Context[Any]) -> Next:
        return Next(self.end)

    @step(transactional=True)
    async def end(self, ctx: Context[Any]) -> Done:
        return await self._note_pid(ctx, Done())

    async def _note_pid(self, ctx: Context[Any], outcome: Any) -> Any:
        ctx.resources.append(await run(ctx.connection, "select pg_backend_pid()"))
        return outcome


@pytest.mark.parametrize(("session", "delay"), [("asyncpg", 0), ("asyncpg", 20), ("sqlalchemy", 0)])
async def test_a_committed_transactional_step_is_never_abandoned(
    make: MakeHarness, caplog: pytest.LogCaptureFixture, session: str, delay: int
) -> None:
    """The row is claimable since the COMMIT, and claimed again before the connection is reset."""
    pids: list[int] = []
    h = await make([Chain], transactional_session=session, transactional_pool=4, resources=pids)

    async def run_in_turn(number: int) -> None:
        for _ in range(number):
            await (await h.engine.start(Chain, {"delay": delay})).result(timeout=30)

    async with h.engine.worker() as worker:
        await asyncio.gather(*(run_in_turn(100) for _ in range(3)))

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert (len(pids), len(set(pids)) <= 4, worker.stats.committed) == (600, True, 900)
