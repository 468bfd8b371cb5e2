"""One outcome takes longer to commit than a statement may: others of its worker commit, and it commits too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Machine, step
from tests.conftest import MakeHarness

# Longer than the worker waits for an answer: half of its lease.
SLEEPS = """
create function public.sleep() returns trigger language plpgsql as
$$begin perform pg_sleep(1.5); return new; end$$"""
ON_SLOW = """
create trigger slow before update on stepwell.instance_data for each row
when (new.result = '"slow"') execute function public.sleep()"""


class Reply(Machine):
    """Ends with what its input says."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(ctx.state["reply"])


async def test_an_outcome_that_takes_too_long_delays_no_other_and_commits(make_harness: MakeHarness) -> None:
    h = await make_harness([Reply], lease=timedelta(seconds=2))
    await h.sql(SLEEPS)
    await h.sql(ON_SLOW)

    async with h.engine.worker() as worker:
        slow = [await h.engine.start(Reply, {"reply": "slow"}) for _ in range(2)]
        others = [await h.engine.start(Reply, {"reply": "quick"}) for _ in range(20)]
        results = [await other.result(timeout=20) for other in others]
        late = [await one.result(timeout=40) for one in slow]

    assert results == ["quick"] * 20
    assert late == ["slow"] * 2
    assert worker.stats.steps == 22
