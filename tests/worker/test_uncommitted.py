"""Outcomes that wait for their commit: slots do not wait for them, but claims do once there are many."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._worker.commit_queue import LARGEST_TEXT, MOST_UNCOMMITTED
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

OFTEN = timedelta(milliseconds=20)


class Tell(Machine):
    """Ends with a long result."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append(ctx.id)
        return Done("x" * 1_000_000)


class Note(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append(ctx.id)
        return Done()


@pytest.mark.parametrize(("slots", "prefetch"), [(5, 0), (700, 50)])
async def test_while_2_000_outcomes_wait_for_their_commit_nothing_is_claimed(
    make_harness: MakeHarness, slots: int, prefetch: int
) -> None:
    """Steps go on to run. Beyond 2,000 wait those that were claimed before: at most what has a slot, what is held
    ready, and what was claimed ahead of steps that are over as soon as they begin."""
    claimed_before = 2 * slots + prefetch
    number = MOST_UNCOMMITTED + claimed_before + 500
    ran: list[int] = []
    h = await make_harness([Note], resources=ran, prefetch=prefetch, poll=OFTEN, max_poll=OFTEN)
    await h.engine.start_many([Note.child()] * number)

    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": slots}) as worker:
            await eventually(lambda: len(ran) >= MOST_UNCOMMITTED and len(ran) == worker.running)
            with armed("timers.ticked") as ticked, armed("claimer.before_claim") as claiming:
                await ticked.reached(3)
                assert claiming.facts == []
                assert len(ran) <= MOST_UNCOMMITTED + claimed_before
            committing.release()
            await eventually(lambda: len(ran) == number)


async def test_while_much_text_waits_for_its_commit_nothing_is_claimed(make_harness: MakeHarness) -> None:
    """It is in memory: of results of a million characters, 2,000 would be too many."""
    slots, most = 5, 2 * LARGEST_TEXT // 1_000_000
    number = most + 10 * slots
    ran: list[int] = []
    h = await make_harness([Tell], resources=ran, prefetch=0, poll=OFTEN, max_poll=OFTEN)
    await h.engine.start_many([Tell.child()] * number)

    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": slots}) as worker:
            await eventually(lambda: len(ran) >= most and len(ran) == worker.running)
            with armed("timers.ticked") as ticked:
                await ticked.reached(3)
                assert len(ran) <= most + 4 * slots
            committing.release()
            await eventually(lambda: worker.stats.committed == number)
