"""The statements that an idle worker sends to the database."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Machine, step
from stepwell._notify.notifier import PROBE_EVERY
from stepwell._worker.upkeep.timers import Timers
from stepwell.config import Settings
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.store.wire_log import Tally

FASTER = 25  # every interval is a 25th of its default, so that 2.4 seconds are a minute
MINUTES = 4
INTERVALS = ("poll", "max_poll", "heartbeat", "lease", "reap", "prune")
MINUTE = 60.0


class Order(Machine):
    @step
    async def start(self, ctx: Context[None]) -> Done:
        return Done({"order": ctx.id})


async def test_an_idle_worker_sends_at_most_thirty_statements_a_minute(make_harness: MakeHarness) -> None:
    """Slow: ten seconds, counted from beat to beat; the jitter of the services averages out."""
    defaults = Settings()
    h = await make_harness([Order], **{name: getattr(defaults, name) / FASTER for name in INTERVALS})
    beats = round(MINUTES * timedelta(seconds=MINUTE) / defaults.heartbeat)

    async with h.engine.worker() as worker:
        with armed("heartbeat.beaten") as beaten, armed("timers.ticked") as ticked:
            await ticked.reached(5)  # by then it polls at its slowest
            await beaten.reached(1)
            tally = Tally(h.engine._opened, worker._database)
            await tally.attach()
            await beaten.reached(1 + beats)
            sent = tally.sent

    elsewhere = beats / MINUTES + MINUTE / PROBE_EVERY  # the heartbeat and the listener have connections of their own
    a_minute = sum("/" in name for name in sent) / MINUTES + elsewhere
    with_frames = len(sent) / MINUTES + elsewhere
    print(f"an idle worker sends {a_minute:.1f} statements a minute ({with_frames:.1f} with BEGIN and COMMIT), "  # noqa: T201
          f"in {MINUTES} minutes: {Counter(sent)}")
    assert with_frames <= 30


def test_an_idle_worker_polls_slower_and_slower_until_there_is_work() -> None:
    """Scenario 83."""
    others: Any = dict.fromkeys(
        ("database", "notifier", "all_queue_slots", "fair_migration", "dispatch_setup", "wakeups")
    )
    timers = Timers(poll=timedelta(seconds=1), max_poll=timedelta(seconds=5), **others)

    pauses = [timers._next_pause(is_busy=is_busy) for is_busy in (False, False, False, True)]

    assert [math.ceil(pause) for pause in pauses] == [2, 4, 5, 1]  # the jitter takes off a tenth at most
