"""Pipelines: the decorators make steps, and an engine takes a pipeline as it takes a machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

from stepwell import Engine
from stepwell.pipelines import Pipeline, PipelineStep, await_, many_to_one, one_to_many, one_to_one


@one_to_many
async def count(upto: int) -> AsyncIterator[int]:
    yield upto


@one_to_one(retries=1, on_error="reject")
def double(number: int) -> int:
    return 2 * number


@many_to_one(name="Add up")
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


assert_type(count, PipelineStep)
assert_type(double, PipelineStep)
pipeline = Pipeline("sum", [count, double, await_("Ask", over="manual", output=int), total])
wrong = one_to_one(double.function, retires=3)  # error


async def run(engine: Engine) -> None:
    await engine.start(pipeline, 7, key="seven")
    await engine.start(double, 7)  # error
