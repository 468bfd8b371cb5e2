"""Crash suspects run one at a time up to their commit, and only claims that start are marked started."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Handle, Machine, step
from stepwell._process import probes
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Suspect(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("cleared")


class Crowd(Machine):
    """Ends when three of its kind run at once."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done("met")


class Queued(Machine):
    """Runs until its queue may end."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources[ctx.state["queue"]].wait()
        return Done("began")


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Suspect, Crowd], resources=asyncio.Barrier(3), heartbeat=timedelta(seconds=0.2))


async def test_the_next_crash_suspect_starts_when_the_one_before_it_is_committed(h: Harness) -> None:
    first, second = await h.engine.start_many([Suspect] * 2)
    await h.sql("update stepwell.instances set crashes = 2")
    with armed("committer.before_commit", hold=True) as committing, armed("executor.begun") as begun:
        async with h.engine.worker():
            assert (await committing.reached())["ids"] == [first.id]

            innocent = await h.engine.start(Suspect)
            assert (await begun.reached(2))["ids"] == [innocent.id]
            [worker] = await h.sql("select waiting from stepwell.workers")
            assert worker["waiting"] == [second.id]
            committing.release()

            assert (await begun.reached(3))["ids"] == [second.id]
            assert await second.result(timeout=20) == "cleared"


async def test_a_lost_lease_leaves_no_slot_with_waiting_crash_suspects(h: Harness) -> None:
    crowd = await h.engine.start_many([Crowd] * 3)
    await h.sql("update stepwell.instances set crashes = 2")
    async with h.engine.worker({"default": 3}) as worker:
        await eventually(lambda: h.sql("select from stepwell.workers where cardinality(waiting) = 2"))
        lost = worker.id

        await h.sql("delete from stepwell.workers")
        await eventually(lambda: worker.id not in (None, lost))
        await h.sql("update stepwell.instances set status = 'runnable', worker_id = null, crashes = 0")

        assert [await one.result(timeout=20) for one in crowd] == ["met"] * 3


async def test_a_crash_suspect_that_waits_is_not_marked_started_with_another_claim(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = {"one": asyncio.Event(), "two": asyncio.Event(), "three": asyncio.Event()}
    h = await make_harness([Queued], resources=may_end)
    begins: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def hold_each(_: object) -> None:
        begins.put_nowait(gate := asyncio.Event())
        await gate.wait()

    async def claimed(queue: str) -> Handle[Any]:
        started = await h.engine.start(Queued, {"queue": queue}, queue=queue, concurrency_key=queue)
        await eventually(lambda: h.sql("select from stepwell.instances where id = $1 and fence = 1", started.id))
        return started

    async with h.engine.worker(dict.fromkeys(may_end, 1)):
        monkeypatch.setitem(probes.hooks, "executor.begun", hold_each)
        await claimed("one")
        first = await begins.get()
        await claimed("two")
        late = await claimed("three")

        first.set()
        second = await begins.get()
        [noted] = await h.sql(
            "select i.claimed_at <= w.begun_at and not i.id = any (w.waiting) as begun "
            "from stepwell.instances i join stepwell.workers w on w.id = i.worker_id where i.id = $1", late.id
        )  # fmt: skip

        assert not noted["begun"]
        monkeypatch.delitem(probes.hooks, "executor.begun")
        second.set()
        for event in may_end.values():
            event.set()
        assert await late.result(timeout=20) == "began"
