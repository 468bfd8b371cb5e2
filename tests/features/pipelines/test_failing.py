"""Pipelines with a failing step: retried, or not if the step says that a retry is of no use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from stepwell import Cancel, InstanceFailed
from stepwell.pipelines import Pipeline, await_, one_to_many, one_to_one
from tests.conftest import MakeHarness

PATIENCE = 10


async def test_a_step_that_raises_cancel_fails_its_pipeline_at_once(make_harness: MakeHarness) -> None:
    tried: list[int] = []

    @one_to_one(retries=5)
    async def never(number: int) -> int:
        tried.append(number)
        raise Cancel("of no use")

    pipeline = Pipeline("hopeless", [never])
    h = await make_harness(machines=[pipeline])

    async with h.engine.worker():
        run = await h.engine.start(pipeline, 7)
        with pytest.raises(InstanceFailed, match="Cancel: of no use"):
            await run.result(PATIENCE)

    assert tried == [7]


async def test_a_rejected_single_value_asks_nothing_and_later_steps_get_no_items(
    make_harness: MakeHarness,
) -> None:
    @one_to_one(retries=0, on_error="reject")
    async def invert(number: int) -> float:
        return 1 / number

    @one_to_one
    async def shown(price: float) -> str:
        return f"{price}"

    asked = await_("Ask price", over="manual", input=float, output=float)
    pipeline = Pipeline("inverse", [invert, asked, shown])
    h = await make_harness(machines=[pipeline])

    async with h.engine.worker():
        run = await h.engine.start(pipeline, 0)
        result = await run.result(PATIENCE)

    assert result is None
    assert await h.sql("select from stepwell.interactions") == []


async def test_a_result_of_too_many_items_is_refused_with_what_to_do(make_harness: MakeHarness) -> None:
    pulled: list[int] = []

    @one_to_many
    async def endless(start: int) -> AsyncIterator[int]:
        for number in count(start):
            pulled.append(number)
            yield number

    pipeline = Pipeline("endless", [endless])
    h = await make_harness(machines=[pipeline])

    async with h.engine.worker():
        run = await h.engine.start(pipeline, 0)
        with pytest.raises(InstanceFailed, match="more than 10,000 items are the result"):
            await run.result(PATIENCE)

    assert len(pulled) == 10_001
