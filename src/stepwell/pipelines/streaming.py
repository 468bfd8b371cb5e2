"""Runs a stream of items through steps, one item at a time: memory holds no more than a step asks for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any, Final

from stepwell._runtime.threads import RunThread
from stepwell.errors import Cancel, DefinitionError
from stepwell.pipelines.parts import Cardinality, PipelineStep
from stepwell.pipelines.pulling import Pull, heard, is_plain
from stepwell.pipelines.rejecting import Hearing, Sink, Teller

TURN: Final = 0.002  # seconds after which those have their turn who share the loop
_NOTHING: Final = object()


class Closing:
    """`async with Closing(items):` ends a stream wherever it stands, so that none of its steps keeps a file open."""

    def __init__(self, items: Any) -> None:
        self._items = items

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


class Stream:
    """The items of one segment, on their way through its steps. Plain functions run in a thread, all in the same."""

    def __init__(
        self, pipeline: str, instance_id: int, sink: Sink, keep_thread: Callable[[], RunThread] | None = None
    ) -> None:
        self._teller = Teller(pipeline, instance_id, sink)
        self._keep_thread = RunThread if keep_thread is None else keep_thread
        self._kept: RunThread | None = None
        self._turn_ends = monotonic() + TURN

    async def through(self, steps: Sequence[PipelineStep], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """What comes out of these steps. Close it, also if it was not read to its end."""
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
                reason = None  # it holds this frame, and with it items

    @property
    def _thread(self) -> RunThread:
        """The one thread of this run; none is taken before it is needed."""
        if self._kept is None:
            self._kept = self._keep_thread()
        return self._kept

    def _step(self, step: PipelineStep, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        hearing = Hearing(self._teller.spill(step.name) if is_plain(step.function) else None)
        match step.cardinality:
            case Cardinality.ONE_TO_ONE:
                return self._one_each(step, items, hearing)
            case Cardinality.ONE_TO_MANY:
                return self._many_each(step, items, hearing)
            case Cardinality.MANY_TO_ONE | Cardinality.MANY_TO_MANY:
                return self._of_all(step, items, hearing)

    async def _one_each(self, step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
        call = self._call_in_thread if is_plain(step.function) else _call
        async with Closing(items):
            async for item in items:
                attempt, out = 1, _NOTHING
                if step.accepts and not isinstance(item, step.accepts):
                    attempt, out = 0, item  # it passes this step by
                while attempt:
                    try:
                        out = await call(step, item, hearing)
                        break
                    except Exception as error:  # noqa: BLE001 - whatever the author's code raises
                        attempt = await _next_attempt(step, item, error, attempt, hearing)
                if hearing.pending or monotonic() >= self._turn_ends:
                    await self._pause(step, hearing)
                if out is not _NOTHING:
                    yield out

    async def _many_each(self, step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
        make = self._pull_in_thread if is_plain(step.function) else _make
        async with Closing(items):
            async for item in items:
                attempt, has_given = 1, False
                if step.accepts and not isinstance(item, step.accepts):
                    yield item  # it passes this step by
                    continue
                while attempt:
                    made = make(step, item, hearing)
                    try:
                        async with Closing(made):
                            async for out in made:
                                if hearing.pending or monotonic() >= self._turn_ends:
                                    await self._pause(step, hearing)
                                yield out
                                has_given = True
                        break
                    except Exception as error:  # noqa: BLE001 - as above
                        attempt = await _next_attempt(step, item, error, attempt, hearing, is_last=has_given)
                if hearing.pending or monotonic() >= self._turn_ends:
                    await self._pause(step, hearing)

    async def _of_all(self, step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
        drained = self._drained(step, items, hearing)
        async with Closing(items), Closing(drained):
            if step.cardinality is Cardinality.MANY_TO_ONE:
                made = _one_of_all(step, drained, hearing)
            else:
                made = _make(step, drained, hearing)
            async with Closing(made):
                async for out in made:
                    if hearing.pending or monotonic() >= self._turn_ends:
                        await self._pause(step, hearing)
                    yield out
            await self._pause(step, hearing)

    async def _drained(self, step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
        """The items for a step over all; what it rejects is put aside between two of them, not held to the end."""
        async for item in items:
            yield item
            if hearing.pending or monotonic() >= self._turn_ends:
                await self._pause(step, hearing)

    async def _call_in_thread(self, step: PipelineStep, item: Any, hearing: Hearing) -> Any:
        made = await self._thread.call(heard, hearing, step.function, item)
        if not inspect.isawaitable(made):
            return made
        with hearing:
            return await made

    async def _pull_in_thread(self, step: PipelineStep, item: Any, hearing: Hearing) -> AsyncIterator[Any]:
        """What a plain function gives. It runs a little ahead; what it rejects keeps its place between the items."""
        thread = self._thread
        pull = Pull(thread, hearing)
        try:
            await thread.call(pull.begin, step.function, item)
            if inspect.isawaitable(pull.made):
                with hearing:
                    made = await pull.made
                await thread.call(pull.go_on, made)
            if pull.is_for_loop:
                async with Closing(made := _listened(step, pull.made, hearing)):
                    async for out in made:
                        yield out
                return
            while pull.items or not pull.is_over:
                if not pull.items:
                    await thread.call(pull.pull)
                    continue
                rejected, out = pull.items.popleft()
                hearing.pending += rejected
                yield out
            hearing.pending += pull.rejected
            if pull.error is not None:
                raise pull.error
        finally:
            if not pull.is_over:
                await thread.finish(pull.close)

    async def _pause(self, step: PipelineStep, hearing: Hearing) -> None:
        """Put aside what the step has rejected; let others have their turn if this one was long."""
        if hearing.pending:
            await self._teller.tell(step.name, hearing.take(), lambda: self._thread)
        if monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = monotonic() + TURN


async def _call(step: PipelineStep, item: Any, hearing: Hearing) -> Any:
    with hearing:
        return await step.function(item)


def _make(step: PipelineStep, item: Any, hearing: Hearing) -> AsyncIterator[Any]:
    return _listened(step, step.function(item), hearing)


async def _one_of_all(step: PipelineStep, items: AsyncIterator[Any], hearing: Hearing) -> AsyncIterator[Any]:
    with hearing:
        value = await step.function(items)
    yield value


async def _listened(step: PipelineStep, made: Any, hearing: Hearing) -> AsyncIterator[Any]:
    """What a step gives, one by one: its code runs between two of them, and may reject there."""
    if not isinstance(made, AsyncIterable):
        raise DefinitionError(f"pipeline step {step.name!r} gives many, but it returned {type(made).__name__}")
    later = aiter(made)
    async with Closing(later):
        while True:
            try:
                with hearing:
                    out = await anext(later)
            except StopAsyncIteration:
                return
            yield out


async def _next_attempt(
    step: PipelineStep, item: Any, error: Exception, attempt: int, hearing: Hearing, *, is_last: bool = False
) -> int:
    """Wait for the next try of an item; 0 if there is none, and the item is put aside. Else the error is raised.

    What has given something is not tried again: it would give it twice.
    """
    if not is_last and attempt <= step.retries and not isinstance(error, Cancel):
        await asyncio.sleep(step.backoff(attempt).total_seconds())
        return attempt + 1
    if step.on_error != "reject":
        raise error
    hearing.pending.append((item, f"{type(error).__name__}: {error}", None))
    return 0
