"""A commit that no task waits for: nothing is lost or done twice by that."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

from stepwell import Context, Done, Machine, step
from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._runtime.flusher import Verdict
from stepwell._runtime.handover import Handover
from stepwell._runtime.hands import Hand
from stepwell._runtime.worker import Worker
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.answers: list[Verdict | BaseException] = []

    def answered(self, given: Handover, verdict: Verdict) -> None:
        del given
        self.answers.append(verdict)

    def refused(self, given: Handover, error: BaseException) -> None:
        del given
        self.answers.append(error)


def claim(fence: int) -> Claim:
    return Claim(1, 7, fence, "Order", 1, "ship", 0, 0, "", None, None, "default", datetime.now(UTC))


def handover() -> tuple[Hand, Handover, Heard]:
    hand = Hand(claim(3))
    hand.is_pending = hand.submitted = True
    heard = Heard()
    commit = Commit(claim=hand.claim, status=Status.DONE, step="ship", version=1, attempt=0)
    return hand, Handover(hand, commit, None, copy_context(), heard), heard


async def test_a_verdict_and_a_refusal_are_told_and_are_answers() -> None:
    _, one, heard = handover()
    _, other, heard_too = handover()
    error = RuntimeError("refused")

    one.set_result(Verdict.COMMITTED)
    other.set_exception(error)

    assert (one.done(), heard.answers) == (True, [Verdict.COMMITTED])
    assert (other.done(), heard_too.answers) == (True, [error])


async def test_who_is_abandoned_needs_no_answer_and_has_left_its_slot() -> None:
    hand, given, _ = handover()
    freed: list[Claim] = []
    hand.free_slot = freed.append
    waits = hand.under_way
    assert waits is not None

    hand.abandon("the lease is lost")

    assert (waits.done(), hand.under_way, given.cancelled(), given.done()) == (True, None, True, True)
    assert freed == [hand.claim]


async def test_a_commit_that_will_not_come_is_told_as_lost() -> None:
    hand, given, heard = handover()

    given.cancel()

    assert (hand.abandoned, given.done(), heard.answers) == (True, True, [Verdict.STALE])


class Once(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_a_worker_that_stopped_with_outcomes_in_hand_is_freed(make_harness: MakeHarness) -> None:
    """What is hidden from the collector must not be part of a circle."""
    h = await make_harness([Once])
    with armed("flusher.before_commit", hold=True) as committing:
        async with h.engine.worker(drain_timeout=timedelta(0)) as worker:
            await h.engine.start(Once)
            await committing.reached()
            await h.engine.start(Once)
            stopped, executor = weakref.ref(worker), weakref.ref(worker._executor)
            await eventually(lambda: _running(stopped) == 2)
    del worker

    await eventually(lambda: gc.collect() >= 0 and executor() is None)


async def test_a_task_that_runs_is_what_to_wait_for() -> None:
    hand, _, _ = handover()
    gate = asyncio.Event()
    waits = hand.under_way
    assert waits is not None
    task = asyncio.create_task(_wait(gate))

    hand.begin(task)

    assert (waits.done(), hand.under_way, task.get_name()) == (True, task, "Order #1")
    gate.set()
    await task
    assert hand.under_way is None


def _running(worker: weakref.ref[Worker]) -> int:
    alive = worker()
    return 0 if alive is None else alive.running


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
