"""What becomes of a pipeline whose step fails: tried again, or not if it says that this is of no use."""

from __future__ import annotations

import pytest

from stepwell import Cancel, InstanceFailed
from stepwell.pipelines import Pipeline, one_to_one
from tests.conftest import MakeHarness

PATIENCE = 10


async def test_a_step_that_raises_cancel_fails_its_pipeline_at_once(make_harness: MakeHarness) -> None:
    tried: list[int] = []

    @one_to_one(retries=5)
    async def never(number: int) -> int:
        tried.append(number)
        raise Cancel("of no use")

    pipeline = Pipeline("hopeless", [never])
    h = await make_harness(machines=[pipeline.machine])

    async with h.engine.worker():
        run = await h.engine.start(pipeline.machine, pipeline.state(7))
        with pytest.raises(InstanceFailed, match="Cancel: of no use"):
            await run.result(PATIENCE)

    assert tried == [7]
