"""Rule 28, in part: connections that die stop nothing for good."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Machine, Next, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

KILL = """select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid()"""


class Trip(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.middle, state={"n": ctx.state["n"] + 1})

    @step
    def middle(self, ctx: Context[Any]) -> Next:
        return Next(self.end, state={"n": ctx.state["n"] + 1})

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done(ctx.state["n"])


async def test_rule_28_all_instances_finish_while_connections_are_cut_repeatedly(
    make_harness: MakeHarness,
) -> None:
    """Rule 28: every loop backs off and comes back."""
    h = await make_harness([Trip], heartbeat=timedelta(milliseconds=100))
    await h.engine.start_many([(Trip, {"n": 0})] * 300)

    async with h.engine.worker() as worker:
        for part in (0.2, 0.5, 0.8):
            await eventually(lambda part=part: worker.stats.committed >= int(900 * part))  # type: ignore[misc]
            await h.sql(KILL)
        await eventually(lambda: ended(h, 300), patience=60)

    rows = await h.sql("""select i.status, d.result::text as result, count(*) from stepwell.instances i
                          join stepwell.instance_data d using (id) group by 1, 2""")
    assert [tuple(row) for row in rows] == [("done", "2", 300)]
    assert worker.stats.leases_lost == 0


async def test_rule_28_a_running_step_commits_its_outcome_after_reconnecting(
    make_harness: MakeHarness,
) -> None:
    """Rule 28: running steps keep their outcome and commit it after reconnecting if the fence still holds."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Gated(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            entered.set()
            await gate.wait()
            return Done(ctx.fence)

    h = await make_harness([Gated])
    handle = await h.engine.start(Gated)
    async with h.engine.worker() as worker:
        await entered.wait()
        await h.sql(KILL)
        gate.set()
        await eventually(lambda: ended(h, 1))

    done = await handle.get()
    assert (done.status, done.result, done.attempt, worker.stats.steps) == (Status.DONE, 1, 0, 1)


async def ended(harness: Harness, expected: int) -> bool:
    [row] = await harness.sql("select count(*) from stepwell.instances where finished_at is not null")
    return int(row["count"]) == expected
