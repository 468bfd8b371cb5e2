"""The test kit's crash before and after every commit, over a pipeline with items: its result is the same."""

from __future__ import annotations

from typing import Any

from stepwell.testing import Harness, explore_crashes
from tests.features.pipelines.streams import BROKEN, answer, begun, scores, seen
from tests.support import asked


async def scenario(h: Harness) -> Any:
    """Two items, of which the second is completed first; nothing is left open."""
    seen.forget()
    run = await begun(h, scores, 2)
    await answer(h, run, 1)
    await h.drain()
    await answer(h, run, 0)
    await h.drain()
    problems = await h.sql(f"{asked.BROKEN} union all {BROKEN}")
    [counted] = await h.sql("select count(*) from stepwell.interactions where status = 'completed'")
    return [(await run.get()).result, counted["count"], len(problems)]


async def test_a_pipeline_survives_a_crash_before_and_after_every_commit() -> None:
    """Scenarios 39, 40, 48, 56: ask, item, item and release, step over all."""
    report = await explore_crashes(scenario, machines=[scores])

    assert str(report) == "4 commits, 8 crashes: every one came out as without a crash"
