"""Runs a stream of items through steps, one item at a time: memory holds no more than a step asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any, Final

from stepwell.errors import Cancel, DefinitionError
from stepwell.pipelines.declaring import Cardinality, PipelineStep
from stepwell.pipelines.rejecting import Hearing, Rejected, Sink

_END: Final = object()


class Stream:
    """The items of one segment, on their way through its steps."""

    def __init__(self, pipeline: str, instance_id: int, sink: Sink) -> None:
        self._pipeline = pipeline
        self._instance_id = instance_id
        self._sink = sink

    def through(self, steps: Sequence[PipelineStep], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """What comes out of these steps."""
        for step in steps:
            items = self._step(step, items)
        return items

    async def _step(self, step: PipelineStep, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        hearing = Hearing()
        match step.cardinality:
            case Cardinality.ONE_TO_ONE | Cardinality.ONE_TO_MANY:
                async for item in items:
                    async for out in self._tried(step, item, hearing):
                        if hearing.pending:
                            await self._put_aside(step, hearing)
                        yield out
                    if hearing.pending:
                        await self._put_aside(step, hearing)
            case Cardinality.MANY_TO_ONE:
                with hearing:
                    value = await step.function(self._drained(step, items, hearing))
                await self._put_aside(step, hearing)
                yield value
            case Cardinality.MANY_TO_MANY:
                async for out in _many(step, step.function(self._drained(step, items, hearing)), hearing):
                    if hearing.pending:
                        await self._put_aside(step, hearing)
                    yield out
        await self._put_aside(step, hearing)

    async def _drained(self, step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
        """The items for a step over all; what it rejects is put aside between two of them, not held to the end."""
        async for item in items:
            yield item
            if hearing.pending:
                await self._put_aside(step, hearing)

    async def _tried(self, step: PipelineStep, item: Any, hearing: Hearing) -> AsyncIterator[Any]:
        """What the step makes of an item; tried again as often as it says, as long as nothing has come of it. An
        item that the step does not accept passes it by."""
        if step.accepts and not isinstance(item, step.accepts):
            yield item
            return
        attempt, number = 1, 0
        while True:
            try:
                async for out in _applied(step, item, hearing):
                    yield out
                    number += 1
            except Exception as error:
                if number or attempt > step.retries or isinstance(error, Cancel):
                    if step.on_error != "reject":
                        raise
                    hearing.pending.append((item, f"{type(error).__name__}: {error}", None))
                    return
                await asyncio.sleep(step.backoff(attempt).total_seconds())
                attempt += 1
            else:
                return

    async def _put_aside(self, step: PipelineStep, hearing: Hearing) -> None:
        rejected, hearing.pending = hearing.pending, []
        for item, reason, place in rejected:
            told = self._sink(
                Rejected(
                    pipeline=self._pipeline, instance_id=self._instance_id, step=step.name, item=item, reason=reason,
                    place=place,
                )
            )  # fmt: skip
            if inspect.isawaitable(told):
                await told


async def _applied(step: PipelineStep, item: Any, hearing: Hearing) -> AsyncIterator[Any]:
    with hearing:
        made = step.function(item)
        if inspect.isawaitable(made):
            made = await made
    if step.cardinality is Cardinality.ONE_TO_ONE:
        yield made
        return
    async for out in _many(step, made, hearing):
        yield out


async def _many(step: PipelineStep, made: Any, hearing: Hearing) -> AsyncIterator[Any]:
    """What a step gives, one by one: its code runs between two of them, and may reject there."""
    if isinstance(made, AsyncIterable):
        later = aiter(made)
        while True:
            try:
                with hearing:
                    out = await anext(later)
            except StopAsyncIteration:
                return
            yield out
    elif isinstance(made, Iterable):
        iterator = iter(made)
        while True:
            with hearing:
                out = next(iterator, _END)
            if out is _END:
                return
            yield out
    else:
        raise DefinitionError(f"pipeline step {step.name!r} gives many, but it returned {type(made).__name__}")
