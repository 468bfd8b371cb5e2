"""Outcomes that wait for their commit: slots do not wait for them, but claims do once there are many."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._runtime.claimer import MOST_UNCOMMITTED
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

OFTEN = timedelta(milliseconds=20)


class Note(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append(ctx.id)
        return Done()


@pytest.mark.parametrize(
    ("slots", "prefetch", "most"),
    [(5, 0, MOST_UNCOMMITTED), (700, 50, MOST_UNCOMMITTED), (2_000, 100, MOST_UNCOMMITTED + 100)],
)
async def test_while_no_commit_is_answered_steps_go_on_to_run_but_no_more_than_2_000_outcomes_wait(
    make_harness: MakeHarness, slots: int, prefetch: int, most: int
) -> None:
    """Or as many as have a slot or are held ready, if these are more. Then nothing is claimed until a commit lands."""
    ran: list[int] = []
    h = await make_harness([Note], resources=ran, prefetch=prefetch, poll=OFTEN, max_poll=OFTEN)
    await h.engine.start_many([Note.child()] * (most + 500))

    with armed("flusher.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": slots}) as worker:
            await eventually(lambda: len(ran) == most)
            with armed("timers.ticked") as ticked, armed("claimer.before_claim") as claiming:
                await ticked.reached(3)
                assert (claiming.facts, worker.running, len(ran)) == ([], most, most)
            committing.release()
            await eventually(lambda: len(ran) == most + 500)
