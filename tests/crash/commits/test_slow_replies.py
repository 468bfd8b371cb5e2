"""Late replies, held by a real proxy: the heartbeat takes no healthy claim for a lost one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Machine, Next, step
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.proxy import Proxy, proxy_to
from tests.support.waiting import eventually

AT_ONCE, BARE, BEAT = map(statement, ("instances/claim_started_fast", "instances/claim_fast", "workers/beat"))
BEAT_EVERY = timedelta(seconds=0.2)


class Gates:
    """How often each step ran, and when it may end."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int]] = []
        self.may_end = {"one": asyncio.Event(), "two": asyncio.Event()}

    async def visit(self, ctx: Context[Any]) -> None:
        self.runs.append((ctx.step, ctx.attempt))
        await self.may_end[ctx.step].wait()


class Gated(Machine, initial="one"):
    @step
    async def one(self, ctx: Context[Any]) -> Next:
        await ctx.resources.visit(ctx)
        return Next(self.two)

    @step
    async def two(self, ctx: Context[Any]) -> Done:
        await ctx.resources.visit(ctx)
        return Done("through")


class Scene:
    """An engine behind a proxy, with one instance."""

    def __init__(self, harness: Harness, proxy: Proxy, engine: Engine, gates: Gates) -> None:
        self.harness = harness
        self.proxy = proxy
        self.engine = engine
        self.gates = gates

    async def is_at(self, status: str, step_: str) -> bool:
        return bool(
            await self.harness.sql("select from stepwell.instances where status = $1 and step = $2", status, step_)
        )


@pytest.fixture
async def scene(make_harness: MakeHarness) -> AsyncIterator[Scene]:
    harness, gates = await make_harness([Gated]), Gates()
    settings = {"heartbeat": BEAT_EVERY, "poll": BEAT_EVERY, "max_poll": BEAT_EVERY, "run_ahead": 0, "prefetch": 4}
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxy_to(harness.url))
        engine = Engine(proxy.url, machines=[Gated], resources=gates, **settings)
        yield Scene(harness, proxy, await stack.enter_async_context(engine), gates)


@pytest.mark.parametrize(("claim", "slots"), [(AT_ONCE, 50), (BARE, 1)], ids=["of an idle worker", "of any"])
async def test_a_claim_with_a_reply_longer_than_a_beat_is_released_and_not_run(
    scene: Scene, claim: str, slots: int
) -> None:
    gated = await scene.engine.start(Gated)
    late = scene.proxy.hold("answer", claim)
    for gate in scene.gates.may_end.values():
        gate.set()

    async with scene.engine.worker({"default": slots}) as worker:
        await late.happened.wait()
        await eventually(lambda: scene.is_at("runnable", "one"))
        late.release()
        result = await gated.result(timeout=20)

    assert result == "through"
    assert worker.stats.orphans == 1
    assert scene.gates.runs == [("one", 0), ("two", 0)]


async def test_a_claim_made_during_a_beat_is_not_taken_for_an_old_one(scene: Scene) -> None:
    gated = await scene.engine.start(Gated)
    async with scene.engine.worker({"default": 50}) as worker:
        await eventually(lambda: scene.gates.runs)
        await eventually(lambda: is_older_than_a_beat(scene))
        beat = scene.proxy.hold("answer", BEAT)
        await beat.happened.wait()
        claim = scene.proxy.hold("answer", AT_ONCE)
        scene.gates.may_end["one"].set()
        await claim.happened.wait()

        with armed("heartbeat.beaten") as beaten:
            beat.release()
            await beaten.reached()
        claim.release()
        scene.gates.may_end["two"].set()
        result = await gated.result(timeout=20)

    assert result == "through"
    assert worker.stats.orphans == 0
    assert scene.gates.runs == [("one", 0), ("two", 0)]


async def test_a_step_started_during_a_beat_is_not_told_that_its_claim_is_lost(scene: Scene) -> None:
    gated = await scene.engine.start(Gated)
    async with scene.engine.worker({"default": 50}):
        await eventually(lambda: scene.gates.runs)
        asked = scene.proxy.hold("request", BEAT)
        await asked.happened.wait()
        with armed("claimer.before_claim", hold=True) as claiming:
            scene.gates.may_end["one"].set()
            await eventually(lambda: scene.is_at("runnable", "two"))
            answered = scene.proxy.hold("answer", BEAT)
            asked.release()
            await answered.happened.wait()
            claiming.release()
        await eventually(lambda: len(scene.gates.runs) == 2)

        with armed("heartbeat.beaten") as beaten:
            answered.release()
            await beaten.reached()
        scene.gates.may_end["two"].set()
        result = await gated.result(timeout=20)

    assert result == "through"
    assert scene.gates.runs == [("one", 0), ("two", 0)]


async def is_older_than_a_beat(scene: Scene) -> bool:
    return bool(
        await scene.harness.sql(
            "select from stepwell.instances "
            "where status = 'executing' and claimed_at < pg_catalog.now() - $1::interval",
            BEAT_EVERY,
        )
    )
