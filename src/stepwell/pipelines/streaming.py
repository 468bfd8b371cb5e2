"""Runs a stream of items through steps, one item at a time: memory holds no more than a step asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any

from stepwell.errors import Cancel, DefinitionError
from stepwell.pipelines.declaring import Cardinality, PipelineStep
from stepwell.pipelines.rejecting import Rejected, Sink, _pending


class Stream:
    """The items of one segment, on their way through its steps."""

    def __init__(self, pipeline: str, instance_id: int, sink: Sink) -> None:
        self._pipeline = pipeline
        self._instance_id = instance_id
        self._sink = sink
        self._rejected: list[tuple[Any, str, str | None]] = []
        _pending.set(self._rejected)

    def through(self, steps: Sequence[PipelineStep], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """What comes out of these steps."""
        for step in steps:
            items = self._step(step, items)
        return items

    async def _step(self, step: PipelineStep, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        match step.cardinality:
            case Cardinality.ONE_TO_ONE | Cardinality.ONE_TO_MANY:
                async for item in items:
                    async for out in self._tried(step, item):
                        yield out
            case Cardinality.MANY_TO_ONE:
                yield await step.function(items)
                await self._put_aside(step)
            case Cardinality.MANY_TO_MANY:
                async for out in _many(step, step.function(items)):
                    yield out
                    await self._put_aside(step)
        await self._put_aside(step)

    async def _tried(self, step: PipelineStep, item: Any) -> AsyncIterator[Any]:
        """What the step makes of an item; tried again as often as it says, as long as nothing has come of it."""
        attempt, number = 1, 0
        while True:
            try:
                async for out in _applied(step, item):
                    yield out
                    number += 1
                    await self._put_aside(step)
            except Exception as error:
                if number or attempt > step.retries or isinstance(error, Cancel):
                    if step.on_error != "reject":
                        raise
                    self._rejected.append((item, f"{type(error).__name__}: {error}", None))
                    await self._put_aside(step)
                    return
                await asyncio.sleep(step.backoff(attempt).total_seconds())
                attempt += 1
            else:
                return

    async def _put_aside(self, step: PipelineStep) -> None:
        while self._rejected:
            item, reason, place = self._rejected.pop(0)
            told = self._sink(
                Rejected(
                    pipeline=self._pipeline, instance_id=self._instance_id, step=step.name, item=item, reason=reason,
                    place=place,
                )
            )  # fmt: skip
            if inspect.isawaitable(told):
                await told


async def _applied(step: PipelineStep, item: Any) -> AsyncIterator[Any]:
    made = step.function(item)
    if inspect.isawaitable(made):
        made = await made
    if step.cardinality is Cardinality.ONE_TO_ONE:
        yield made
        return
    async for out in _many(step, made):
        yield out


async def _many(step: PipelineStep, made: Any) -> AsyncIterator[Any]:
    if isinstance(made, AsyncIterable):
        async for out in made:
            yield out
    elif isinstance(made, Iterable):
        for out in made:
            yield out
    else:
        raise DefinitionError(f"pipeline step {step.name!r} gives many, but it returned {type(made).__name__}")
