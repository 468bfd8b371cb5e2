"""Claims beyond the slots: each begins as soon as a slot is free, and none stays with a worker that does not run it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Handle, Machine, Next, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.idle import is_idle
from tests.support.waiting import eventually

NO_POLL = dict.fromkeys(("poll", "max_poll", "heartbeat", "reap"), timedelta(minutes=10))
BEAT = timedelta(seconds=0.2)
NO_POLL["lease"] = timedelta(hours=1)


class Walk(Machine):
    """Goes on once, ahead of its commit."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("walked")


class Job(Machine):
    """Ends when its gate is open; notes that it runs."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun.append(ctx.id)
        await ctx.resources.gate.wait()
        return Done("done")


class Stage:
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gate = asyncio.Event()


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def h(make_harness: MakeHarness, stage: Stage) -> Harness:
    return await make_harness([Walk, Job], resources=stage, prefetch=3, **NO_POLL)


async def claimed(h: Harness, handles: list[Handle[Any]]) -> None:
    """Wait until a worker has claimed all of these."""
    ids = [handle.id for handle in handles]
    rows = "select from stepwell.instances where id = any ($1::bigint[]) and status = 'executing'"

    async def look() -> bool:
        return len(await h.sql(rows, ids)) == len(ids)

    await eventually(look)


async def test_claims_start_in_the_slot_of_a_step_with_a_stale_commit(h: Harness, stage: Stage) -> None:
    stage.gate.set()
    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": 1}):
            walk = await h.engine.start(Walk)
            await committing.reached()
            jobs = await h.engine.start_many([Job] * 3)
            await claimed(h, jobs)
            await h.sql("select stepwell.cancel(id => $1, notify => false)", walk.id)

            committing.release()

            assert [await job.result(timeout=10) for job in jobs] == ["done"] * 3


async def test_a_claim_beside_a_free_slot_starts_at_the_claimers_next_check(h: Harness, stage: Stage) -> None:
    """A floor: the slots of this worker forget what waits, as they did once."""
    stage.gate.set()
    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": 1}) as worker:
            queue_slots, slots = worker._graph.all_queue_slots["default"], worker._graph.starter.ready_queue
            slots._free_kept_slot = lambda _: setattr(queue_slots, "away", queue_slots.away - 1)  # type: ignore[method-assign]
            walk = await h.engine.start(Walk)
            await committing.reached()
            jobs = await h.engine.start_many([Job] * 3)
            await claimed(h, jobs)
            await h.sql("select stepwell.cancel(id => $1, notify => false)", walk.id)

            committing.release()

            assert [await job.result(timeout=10) for job in jobs] == ["done"] * 3


@pytest.mark.parametrize("notify", [True, False], ids=["by the notice", "by the beat"])
async def test_a_cancelled_claim_leaves_its_place_to_another(
    make_harness: MakeHarness, stage: Stage, *, notify: bool
) -> None:
    h = await make_harness([Job], resources=stage, prefetch=1, **{**NO_POLL, "heartbeat": BEAT})
    async with h.engine.worker({"default": 1}) as worker:
        running = await h.engine.start(Job)
        await eventually(lambda: stage.begun)
        ready, waiting = [await h.engine.start(Job) for _ in range(2)]
        await claimed(h, [running, ready])

        await h.sql("select stepwell.cancel(id => $1, notify => $2)", ready.id, notify)

        await claimed(h, [running, waiting])
        assert worker.running == 2
        stage.gate.set()
        assert [await one.result(timeout=10) for one in (running, waiting)] == ["done"] * 2

    assert stage.begun == [running.id, waiting.id]


async def test_claims_that_arrive_after_a_pause_are_returned(h: Harness, stage: Stage) -> None:
    stage.gate.set()
    async with h.engine.worker({"default": 1}) as worker:
        await eventually(lambda: is_idle(worker))
        with armed("claimer.claimed", hold=True) as held:
            jobs = await h.engine.start_many([Job] * 2)
            await held.reached()
            await h.engine.queues.pause("default")
            await eventually(lambda: worker._graph.all_queue_slots["default"].is_paused)
            held.release()
        await eventually(lambda: h.sql("select from stepwell.instances where status = 'runnable' offset 1"))
        begun = list(stage.begun)

        await h.engine.queues.resume("default")

        assert [await job.result(timeout=10) for job in jobs] == ["done"] * 2
        assert begun == []


async def test_claims_that_wait_when_the_lease_is_lost_start_once(make_harness: MakeHarness, stage: Stage) -> None:
    h = await make_harness([Job], resources=stage, prefetch=3, **{**NO_POLL, "heartbeat": BEAT})
    async with h.engine.worker({"default": 1}) as worker:
        jobs = await h.engine.start_many([Job] * 3)
        await claimed(h, jobs)
        await eventually(lambda: stage.begun)
        lost = worker.id

        await h.sql("delete from stepwell.workers")
        await eventually(lambda: worker.id not in (None, lost))
        queue_slots = worker._graph.all_queue_slots["default"]
        waiting = worker._graph.starter.withdrawals.waiting_ids()
        counters = (queue_slots.running, queue_slots.away, len(queue_slots.buffer), waiting)
        await h.sql("update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null")
        stage.gate.set()
        await h.engine.start(Job)

        assert [await job.result(timeout=10) for job in jobs] == ["done"] * 3
        assert counters == (0, 0, 0, [])
    assert Counter(stage.begun)[jobs[1].id] == Counter(stage.begun)[jobs[2].id] == 1
