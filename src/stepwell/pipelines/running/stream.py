"""Runs a stream of items through steps, one item at a time: memory holds only what a step asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any, Final

from stepwell._process.threads import RunThread
from stepwell.errors import Cancel, DefinitionError
from stepwell.pipelines.model import Cardinality, PipelineStep
from stepwell.pipelines.running.rejects import Collector, Sink, SinkCaller
from stepwell.pipelines.running.threads import Pull, collecting, is_plain

TURN: Final = 0.002  # seconds after which other tasks of the loop get a turn
_NOTHING: Final = object()


class Closing:
    """`async with Closing(items):` closes a stream at any point, so that none of its steps keeps a file open."""

    def __init__(self, items: Any) -> None:
        self._items = items

    async def __aenter__(self) -> Any:
        return self._items

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


class Stream:
    """The items of one segment, on their way through its steps. Plain functions run in one thread."""

    def __init__(
        self, pipeline: str, instance_id: int, sink: Sink, keep_thread: Callable[[], RunThread] | None = None
    ) -> None:
        self._sink_caller = SinkCaller(pipeline, instance_id, sink)
        self._keep_thread = RunThread if keep_thread is None else keep_thread
        self._kept: RunThread | None = None
        self._turn_ends = monotonic() + TURN

    async def through(self, steps: Sequence[PipelineStep], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The output of these steps. Close it, even if it was not read to its end."""
        for step in steps:
            items = self._step(step, items)
        reason: BaseException | None = None
        try:
            async with Closing(items):
                async for item in items:
                    yield item
        except BaseException as error:
            reason = None if isinstance(error, GeneratorExit) else error
            raise
        finally:
            try:
                if self._kept is not None:
                    await self._kept.end(reason)
            finally:
                reason = None  # it refers to this frame, and so to items

    @property
    def _thread(self) -> RunThread:
        """The one thread of this run; it is started when it is first needed."""
        if self._kept is None:
            self._kept = self._keep_thread()
        return self._kept

    def _step(self, step: PipelineStep, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        rejects = Collector(self._sink_caller.spill(step.name) if is_plain(step.function) else None)
        match step.cardinality:
            case Cardinality.ONE_TO_ONE:
                return self._one_each(step, items, rejects)
            case Cardinality.ONE_TO_MANY:
                return self._many_each(step, items, rejects)
            case Cardinality.MANY_TO_ONE | Cardinality.MANY_TO_MANY:
                return self._of_all(step, items, rejects)

    async def _one_each(self, step: PipelineStep, items: AsyncIterator[Any], rejects: Collector) -> AsyncIterator[Any]:
        call = self._call_in_thread if is_plain(step.function) else _call
        async with Closing(items):
            async for item in items:
                attempt, out = 1, _NOTHING
                if step.accepts and not isinstance(item, step.accepts):
                    attempt, out = 0, item  # the item skips this step
                while attempt:
                    try:
                        out = await call(step, item, rejects)
                        break
                    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                        attempt = await _next_attempt(step, item, error, attempt, rejects)
                if rejects.pending or monotonic() >= self._turn_ends:
                    await self._pause(step, rejects)
                if out is not _NOTHING:
                    yield out

    async def _many_each(self, step: PipelineStep, items: AsyncIterator[Any], rejects: Collector) -> AsyncIterator[Any]:
        make = self._pull_in_thread if is_plain(step.function) else _make
        async with Closing(items):
            async for item in items:
                attempt, has_given = 1, False
                if step.accepts and not isinstance(item, step.accepts):
                    yield item  # the item skips this step
                    continue
                while attempt:
                    made = make(step, item, rejects)
                    try:
                        async with Closing(made):
                            async for out in made:
                                if rejects.pending or monotonic() >= self._turn_ends:
                                    await self._pause(step, rejects)
                                yield out
                                has_given = True
                        break
                    except Exception as error:  # noqa: BLE001 - as above
                        attempt = await _next_attempt(step, item, error, attempt, rejects, is_last=has_given)
                if rejects.pending or monotonic() >= self._turn_ends:
                    await self._pause(step, rejects)

    async def _of_all(self, step: PipelineStep, items: AsyncIterator[Any], rejects: Collector) -> AsyncIterator[Any]:
        drained = self._drained(step, items, rejects)
        async with Closing(items), Closing(drained):
            if step.cardinality is Cardinality.MANY_TO_ONE:
                made = _one_of_all(step, drained, rejects)
            else:
                made = _make(step, drained, rejects)
            async with Closing(made):
                async for out in made:
                    if rejects.pending or monotonic() >= self._turn_ends:
                        await self._pause(step, rejects)
                    yield out
            await self._pause(step, rejects)

    async def _drained(self, step: PipelineStep, items: AsyncIterator[Any], rejects: Collector) -> AsyncIterator[Any]:
        """The items for a step over the whole stream; its rejections are passed on between two items, not held to the
        end.
        """
        async for item in items:
            yield item
            if rejects.pending or monotonic() >= self._turn_ends:
                await self._pause(step, rejects)

    async def _call_in_thread(self, step: PipelineStep, item: Any, rejects: Collector) -> Any:
        made = await self._thread.call(collecting, rejects, step.function, item)
        if not inspect.isawaitable(made):
            return made
        with rejects:
            return await made

    async def _pull_in_thread(self, step: PipelineStep, item: Any, rejects: Collector) -> AsyncIterator[Any]:
        """The items of a plain function. It runs a little ahead; its rejections keep their place between the items."""
        thread = self._thread
        pull = Pull(thread, rejects)
        try:
            await thread.call(pull.begin, step.function, item)
            if inspect.isawaitable(pull.made):
                with rejects:
                    made = await pull.made
                await thread.call(pull.iterate, made)
            if pull.is_for_loop:
                async with Closing(made := _collected(step, pull.made, rejects)):
                    async for out in made:
                        yield out
                return
            while pull.items or not pull.is_over:
                if not pull.items:
                    await thread.call(pull.pull)
                    continue
                rejected, out = pull.items.popleft()
                rejects.pending += rejected
                yield out
            rejects.pending += pull.rejected
            if pull.error is not None:
                raise pull.error
        finally:
            if not pull.is_over:
                await thread.finish(pull.close)

    async def _pause(self, step: PipelineStep, rejects: Collector) -> None:
        """Pass on what the step has rejected; yield to the loop if this step took long."""
        if rejects.pending:
            await self._sink_caller.send(step.name, rejects.take(), lambda: self._thread)
        if monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = monotonic() + TURN


async def _call(step: PipelineStep, item: Any, rejects: Collector) -> Any:
    with rejects:
        return await step.function(item)


def _make(step: PipelineStep, item: Any, rejects: Collector) -> AsyncIterator[Any]:
    return _collected(step, step.function(item), rejects)


async def _one_of_all(step: PipelineStep, items: AsyncIterator[Any], rejects: Collector) -> AsyncIterator[Any]:
    with rejects:
        value = await step.function(items)
    yield value


async def _collected(step: PipelineStep, made: Any, rejects: Collector) -> AsyncIterator[Any]:
    """The items of a step, one by one: its code runs between two of them, and may reject there."""
    if not isinstance(made, AsyncIterable):
        raise DefinitionError(f"pipeline step {step.name!r} yields many items, but it returned {type(made).__name__}")
    later = aiter(made)
    async with Closing(later):
        while True:
            try:
                with rejects:
                    out = await anext(later)
            except StopAsyncIteration:
                return
            yield out


async def _next_attempt(
    step: PipelineStep, item: Any, error: Exception, attempt: int, rejects: Collector, *, is_last: bool = False
) -> int:
    """Wait for the next try of an item; 0 if there is none, and the item is rejected. Otherwise the error is raised.

    A step that has yielded an item is not tried again: it would yield it twice.
    """
    if not is_last and attempt <= step.retries and not isinstance(error, Cancel):
        await asyncio.sleep(step.backoff(attempt).total_seconds())
        return attempt + 1
    if step.on_error != "reject":
        raise error
    rejects.pending.append((item, f"{type(error).__name__}: {error}", None))
    return 0
