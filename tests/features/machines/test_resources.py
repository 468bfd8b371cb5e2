"""Resources: what steps need and no state can hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepwell import Context, Done, Machine, job, step
from tests.conftest import MakeHarness
from tests.support.waiting import draining


class Asking(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(ctx.resources.answer)

    @step
    def in_a_thread(self, ctx: Context[Any]) -> Done:
        return Done(ctx.resources.answer)

    @step
    async def slow(self, ctx: Context[Any]) -> Done:
        ctx.resources.entered.set()
        await ctx.resources.gate.wait()
        return Done(ctx.resources.is_open)


class Oracle:
    def __init__(self) -> None:
        self.answer = 42
        self.is_open = True
        self.entered, self.gate = asyncio.Event(), asyncio.Event()


async def test_a_plain_object_is_handed_to_every_step(make_harness: MakeHarness) -> None:
    h = await make_harness([Asking], resources=Oracle())
    handles = [await h.engine.start(Asking, step=name) for name in ("start", "in_a_thread")]

    async with h.engine.worker():
        assert [await handle.result(timeout=30) for handle in handles] == [42, 42]


async def test_a_job_finds_resources_in_its_context(make_harness: MakeHarness) -> None:
    @job
    async def ask(ctx: Context[Any]) -> int:
        answer: int = ctx.resources.answer
        return answer

    h = await make_harness([ask], resources=Oracle())
    handle = await h.engine.start(ask)
    async with h.engine.worker():
        assert await handle.result(timeout=30) == 42


async def test_a_lifespan_is_entered_by_the_worker_and_left_after_its_drain(make_harness: MakeHarness) -> None:
    events: list[str] = []
    oracle = Oracle()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Oracle]:
        events.append("entered")
        yield oracle
        oracle.is_open = False
        events.append("left")

    h = await make_harness([Asking], resources=lifespan)
    handle = await h.engine.start(Asking, step="slow")
    assert events == []
    async def open_when_draining() -> None:
        await draining(worker)
        oracle.gate.set()

    async with h.engine.worker() as worker:
        await oracle.entered.wait()
        assert events == ["entered"]
        opening = asyncio.create_task(open_when_draining())
    await opening

    assert events == ["entered", "left"]
    assert await handle.result(timeout=5) is True


async def test_every_worker_enters_its_own_lifespan(make_harness: MakeHarness) -> None:
    entered: list[Oracle] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Oracle]:
        entered.append(Oracle())
        yield entered[-1]

    h = await make_harness([Asking], resources=lifespan)
    async with h.engine.worker(), h.engine.worker():
        assert len(entered) == 2


async def test_a_lifespan_that_fails_starts_no_worker(make_harness: MakeHarness) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ConnectionError("no broker")
        yield

    h = await make_harness([Asking], resources=lifespan)

    with pytest.raises(ConnectionError, match="no broker"):
        async with h.engine.worker():
            pass

    assert await h.engine.insights.workers() == []
