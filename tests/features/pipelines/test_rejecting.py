"""Rejected items: by which step, why, from where; and what continues without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Cancel
from stepwell.pipelines import PipelineStep, Rejected, many_to_many, many_to_one, one_to_many, one_to_one, reject
from stepwell.pipelines.running.stream import Stream


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


@one_to_many
def rows(text: str) -> Iterator[int]:
    for number, line in enumerate(text.split(), 1):
        if line.isdigit():
            yield int(line)
        else:
            reject(line, "no number", place=f"line {number}")


@one_to_one(retries=0, on_error="reject")
async def invert(number: int) -> float:
    return 1 / number


@many_to_many
async def small(numbers: AsyncIterator[float]) -> AsyncIterator[float]:
    async for number in numbers:
        if number > 0.9:
            reject(number, "too large")
        else:
            yield number


@many_to_one
async def add_up(numbers: AsyncIterator[float]) -> float:
    total = 0.0
    async for number in numbers:
        if number > 0.4:
            reject(number, "left out")
        else:
            total += number
    return total


async def run(steps: list[PipelineStep], *items: Any) -> tuple[list[Any], list[tuple[str, Any, str | None]]]:
    """The outputs, and which step rejected what."""
    rejected: list[Rejected] = []

    async def given() -> AsyncIterator[Any]:
        for item in items:
            yield item

    out = [value async for value in Stream("p", 7, rejected.append).through(steps, given())]
    assert all((one.pipeline, one.instance_id) == ("p", 7) for one in rejected)
    return out, [(one.step, one.item, one.place) for one in rejected]


async def test_a_rejected_item_names_the_step_that_rejected_it_when_nested() -> None:
    out, rejected = await run([rows, invert, small, add_up], "4 x 1 0 y 2 5 z")

    assert out == [0.45]
    assert rejected == [
        ("rows", "x", "line 2"), ("small", 1.0, None), ("invert", 0, None), ("rows", "y", "line 5"),
        ("add_up", 0.5, None), ("rows", "z", "line 8"),
    ]  # fmt: skip


async def test_an_item_is_rejected_after_its_last_attempt_and_others_continue() -> None:
    tried: list[int] = []

    @one_to_one(retries=2, backoff=at_once, on_error="reject")
    async def fragile(number: int) -> int:
        tried.append(number)
        if number == 2:
            raise ValueError("two")
        return number

    out, rejected = await run([fragile], 1, 2, 3)

    assert (out, rejected) == ([1, 3], [("fragile", 2, None)])
    assert tried == [1, 2, 2, 2, 3]


async def test_a_cancel_is_not_retried() -> None:
    tried: list[int] = []

    @one_to_one(retries=5, backoff=at_once)
    async def never(number: int) -> int:
        tried.append(number)
        raise Cancel("of no use")

    with pytest.raises(Cancel, match="of no use"):
        await run([never], 1)

    assert tried == [1]


def test_a_reject_outside_of_a_step_is_refused() -> None:
    with pytest.raises(RuntimeError, match="outside of a step of a pipeline"):
        reject(5, "no reason")
