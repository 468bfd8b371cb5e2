"""The engine's own calls inside a transactional step: `connection=ctx.connection` joins the step's transaction."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Await, Context, Done, Duplicate, Machine, NotFound, Status, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.transactional_steps.ledger import SESSIONS, note, notes


class Other(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done(ctx.awaited[0].payload)


class Caller(Machine):
    """Calls the engine, which it finds in its resources, in its own transaction."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        engine, own = ctx.resources["engine"], ctx.connection
        await note(own, "called")
        started = await engine.start(Other, key="other", connection=own)
        await engine.signal("other", "go", 7, connection=own)
        with pytest.raises(Duplicate, match=f"occupied by instance {started.id}"):
            await engine.start(Other, key="other", connection=own)
        if ctx.state.get("fails"):
            raise ValueError("after all")
        return Done(started.id)

    @step(transactional=True)
    async def signal_itself(self, ctx: Context[Any]) -> Await:
        await ctx.resources["engine"].signal(ctx.id, "echo", ctx.step, connection=ctx.connection)
        return Await("echo", then=self.hear)

    @step(transactional=True)
    async def hear(self, ctx: Context[Any]) -> Done:
        return Done([signal.payload for signal in ctx.awaited])

    @step(transactional=True)
    async def cancel_itself(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, "called")
        await ctx.resources["engine"].cancel(ctx.id, connection=ctx.connection)
        return Done()


async def caller(make: MakeHarness, session: str) -> Any:
    resources: dict[str, Any] = {}
    h = await make([Caller, Other], transactional_session=session, resources=resources)
    resources["engine"] = h.engine
    return h


@pytest.mark.parametrize("session", SESSIONS)
async def test_starts_and_signals_inside_a_step_commit_with_its_outcome(make: MakeHarness, session: str) -> None:
    h = await caller(make, session)
    calling = await h.engine.start(Caller, {})

    with armed("transactional.written", hold=True) as written:
        async with h.engine.worker():
            await written.reached()
            with pytest.raises(NotFound):
                await h.engine.get("other")
            written.release()
            started = await calling.result(timeout=30)
            result = await h.engine.handle(started).result(timeout=30)

    assert (result, await notes(h)) == (7, ["called"])


@pytest.mark.parametrize("session", SESSIONS)
async def test_starts_and_signals_inside_a_step_are_rolled_back_with_it(make: MakeHarness, session: str) -> None:
    h = await caller(make, session)
    calling = await h.engine.start(Caller, {"fails": True})

    async with h.engine.worker():
        ended = await calling.wait(timeout=30)

    assert (ended.status, await notes(h)) == (Status.FAILED, [])
    assert await h.sql("select count(*) as rows from stepwell.instances") == [(1,)]
    assert await h.sql("select count(*) as rows from stepwell.signals") == [(0,)]


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_step_that_signals_itself_and_then_parks_is_woken(make: MakeHarness, session: str) -> None:
    h = await caller(make, session)
    calling = await h.engine.start(Caller, {}, step="signal_itself")

    async with h.engine.worker():
        assert await calling.result(timeout=30) == ["signal_itself"]


async def test_a_step_that_cancels_itself_is_told_to_return_stop(make: MakeHarness) -> None:
    h = await caller(make, "asyncpg")
    calling = await h.engine.start(Caller, {}, step="cancel_itself")

    async with h.engine.worker():
        ended = await calling.wait(timeout=30)

    assert (ended.status, ended.error and ended.error.type) == (Status.FAILED, "TransactionBroken")
    assert ended.error is not None
    assert "return Stop" in ended.error.message
    assert await notes(h) == []
