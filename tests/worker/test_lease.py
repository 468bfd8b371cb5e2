"""Rules 26 and 26a: a worker and its lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

OFTEN = timedelta(milliseconds=20)
TAKE_AWAY = "update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null, attempt = 1"


class Patient(Machine):
    """Waits at its first attempt until it is cancelled, and notes what it was told; then is done."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        if ctx.attempt > 0:
            return Done("again")
        ctx.resources["entered"].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            ctx.resources["told"] = str(cancelled)
            raise
        return Done("never")

    @step
    async def quick(self, ctx: Context[Any]) -> Done:
        return Done("quick")

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
        return Done("handled")


async def patient_harness(make_harness: MakeHarness, **settings: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {"entered": asyncio.Event(), "told": None}
    return await make_harness([Patient], resources=resources, **settings), resources


async def test_rule_26_a_worker_that_lost_its_lease_stops_its_steps_and_restarts(
    make_harness: MakeHarness,
) -> None:
    """Rules 9 and 26: a worker that finds its lease gone stops those steps, tells them so, and starts anew."""
    h, resources = await patient_harness(make_harness, heartbeat=OFTEN, reap=OFTEN)
    patient = await h.engine.start(Patient)

    async with h.engine.worker({"default": 1}) as worker:
        await resources["entered"].wait()
        lost = worker.id
        await h.sql(f"with reaped as ({TAKE_AWAY} returning id) delete from stepwell.workers")
        await eventually(lambda: worker.id not in (None, lost))
        quick = await h.engine.start(Patient, step="quick")
        works_on = await quick.result(timeout=30)
        result = await patient.result(timeout=30)

    assert (works_on, result, worker.stats.leases_lost) == ("quick", "again", 1)
    assert resources["told"] == "the lease of this worker is lost"


async def test_rule_26_a_step_that_lost_its_claim_is_cancelled_and_told(make_harness: MakeHarness) -> None:
    """Rules 9 and 26: a step whose claim went to somebody else is cancelled and told so; the worker lives on."""
    h, resources = await patient_harness(make_harness, heartbeat=OFTEN)
    patient = await h.engine.start(Patient)

    async with h.engine.worker() as worker:
        await resources["entered"].wait()
        await h.sql(TAKE_AWAY)
        await eventually(lambda: resources["told"])
        await h.sql("notify stepwell_work, 'default'")
        result = await patient.result(timeout=30)

    assert (result, worker.stats.leases_lost) == ("again", 0)
    assert resources["told"] == "the claim of this step is lost"


async def test_rule_26_a_step_is_cancelled_if_its_worker_claims_its_instance_again(
    make_harness: MakeHarness,
) -> None:
    """Rules 9 and 26: a newer claim proves the older one lost; no beat is needed, and no step is forgotten."""
    h, resources = await patient_harness(make_harness)
    patient = await h.engine.start(Patient)

    async with h.engine.worker() as worker:
        await resources["entered"].wait()
        await h.sql(TAKE_AWAY)
        await h.sql("notify stepwell_work, 'default'")
        result = await patient.result(timeout=30)
        await eventually(lambda: worker.running == 0)

    assert (result, resources["told"]) == ("again", "the claim of this step is lost")


async def test_rule_26_a_lease_is_renewed_and_worker_ids_are_never_reused(make_harness: MakeHarness) -> None:
    """Rule 26: a worker holds one lease row for itself and beats it; ids are never reused."""
    h, _ = await patient_harness(make_harness, heartbeat=OFTEN)
    ids = []
    for _ in range(3):
        with armed("heartbeat.beaten") as beaten:
            async with h.engine.worker() as worker:
                ids.append(worker.id)
                facts = await beaten.reached(3)
                [row] = await h.sql("select id, beat_at > started_at as beaten from stepwell.workers")
        assert (facts["worker_id"], row["id"], row["beaten"]) == (ids[-1], ids[-1], True)
        await h.sql("delete from stepwell.workers")

    assert len(set(ids)) == 3


async def test_rule_26_claims_and_commits_write_no_lease(make_harness: MakeHarness) -> None:
    """Rule 26: claiming and finishing write no leases."""
    h, _ = await patient_harness(make_harness)
    lease = "select lease_until, beat_at from stepwell.workers where id = $1"

    async with h.engine.worker() as worker:
        before = await h.sql(lease, worker.id)
        handles = await h.engine.start_many([Patient.child(step="quick")] * 50)
        for handle in handles:
            await handle.result(timeout=30)
        after = await h.sql(lease, worker.id)

    assert before == after


async def test_rule_26a_a_blocked_loop_keeps_its_lease_and_is_logged(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 26a: a step that blocks the main loop delays its own worker only, and is named in a warning."""
    warned, beaten = Warned(), threading.Event()

    class Blocking(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            beaten.clear()
            return Done([warned.event.wait(30), beaten.wait(30)])  # blocks the loop, on purpose

    h = await make_harness([Blocking], heartbeat=OFTEN)
    logging.getLogger("stepwell").addHandler(warned)
    try:
        with armed("heartbeat.beaten", fault=lambda _: beaten.set()):
            async with h.engine.worker() as worker:
                blocking = await h.engine.start(Blocking)
                result = await blocking.result(timeout=60)
    finally:
        logging.getLogger("stepwell").removeHandler(warned)

    assert (result, worker.stats.leases_lost, worker.stats.stale) == ([True, True], 0, 0)
    named = [r.getMessage() for r in caplog.records if "the event loop has been blocked" in r.getMessage()]
    assert len(named) == 1
    assert f"by Blocking.start #{blocking.id}" in named[0]


class Warned(logging.Handler):
    """Tells, in the thread that says so, that the loop is blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the event loop has been blocked" in record.getMessage():
            self.event.set()


async def test_rule_26_a_step_longer_than_the_lease_keeps_it_by_beats(make_harness: MakeHarness) -> None:
    """Rule 26, Scenario 140: two leases long, with a reaper at hand, and it is the first attempt still."""

    class Long(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            await ctx.resources.wait()
            return Done(ctx.attempt)

    leases_are_over = asyncio.Event()
    h = await make_harness([Long], resources=leases_are_over, lease=timedelta(seconds=0.9), reap=OFTEN)
    long = await h.engine.start(Long)

    async with h.another_engine() as other, h.engine.worker(), other.worker({"elsewhere": 1}):
        with armed("heartbeat.beaten") as beaten:
            await beaten.reached(14)  # of two workers: each has beaten for two leases
        leases_are_over.set()
        attempt = await long.result(timeout=30)

    assert (attempt, (await long.get()).crashes) == (0, 0)
