"""A commit that no task waits for: nothing is lost or done twice by that."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from stepwell import Context, Done, Machine, step
from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._worker.active_claims import SUBMITTED, ActiveClaim
from stepwell._worker.lost_replies import Verdict
from stepwell._worker.running.executor import Executor, PendingCommit
from stepwell._worker.worker import Worker
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.answers: list[Verdict | BaseException] = []

    def on_verdict(self, given: PendingCommit, verdict: Verdict) -> None:
        del given
        self.answers.append(verdict)

    def on_refusal(self, given: PendingCommit, error: BaseException) -> None:
        del given
        self.answers.append(error)


def claim(fence: int) -> Claim:
    return Claim(1, 7, fence, "Order", 1, "ship", 0, 0, "", None, None, "default", datetime.now(UTC))


def handover() -> tuple[ActiveClaim, PendingCommit, Heard]:
    active = ActiveClaim(claim(3))
    active.is_pending, active.stage = True, SUBMITTED
    heard = Heard()
    commit = Commit(claim=active.claim, status=Status.DONE, step="ship", version=1, attempt=0)
    return active, PendingCommit(active, commit, None, copy_context(), cast("Executor", heard)), heard


async def test_a_pending_commit_reports_its_verdict_or_its_refusal() -> None:
    _, one, heard = handover()
    _, other, heard_too = handover()
    error = RuntimeError("refused")

    one.set_result(Verdict.COMMITTED)
    other.set_exception(error)

    assert (one.done(), heard.answers) == (True, [Verdict.COMMITTED])
    assert (other.done(), heard_too.answers) == (True, [error])


async def test_an_abandoned_claim_needs_no_reply_and_has_left_its_slot() -> None:
    active, given, _ = handover()
    freed: list[Claim] = []
    active.free_slot = freed.append
    waits = active.under_way
    assert waits is not None

    active.abandon("the lease is lost")

    assert (waits.done(), active.under_way, given.cancelled(), given.done()) == (True, None, True, True)
    assert freed == [active.claim]


async def test_a_commit_that_will_not_arrive_is_reported_as_lost() -> None:
    active, given, heard = handover()

    given.cancel()

    assert (active.abandoned, given.done(), heard.answers) == (True, True, [Verdict.STALE])


class Once(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_a_worker_that_stopped_with_pending_commits_is_freed(make_harness: MakeHarness) -> None:
    """What is hidden from the collector must not be part of a circle."""
    h = await make_harness([Once])
    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker(drain_timeout=timedelta(0)) as worker:
            await h.engine.start(Once)
            await committing.reached()
            await h.engine.start(Once)
            stopped, executor = weakref.ref(worker), weakref.ref(worker._graph.executor)
            await eventually(lambda: _running(stopped) == 2)
    del worker

    await eventually(lambda: gc.collect() >= 0 and executor() is None)


async def test_an_active_claim_waits_for_its_running_task() -> None:
    active, _, _ = handover()
    gate = asyncio.Event()
    waits = active.under_way
    assert waits is not None
    task = asyncio.create_task(_wait(gate))

    active.begin(task)

    assert (waits.done(), active.under_way, task.get_name()) == (True, task, "Order #1")
    gate.set()
    await task
    assert active.under_way is None


def _running(worker: weakref.ref[Worker]) -> int:
    alive = worker()
    return 0 if alive is None else alive.running


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
