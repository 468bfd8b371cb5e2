"""Sync functions of steps run in a thread, so that no other run waits; generators are closed in any case."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from stepwell._process.threads import RunThread
from stepwell.pipelines import PipelineStep, many_to_many, many_to_one, one_to_many, one_to_one
from stepwell.pipelines.running.stream import Stream
from stepwell.pipelines.running.threads import MOST
from tests.support.waiting import eventually

PATIENCE = 30
around = ContextVar("around", default="nothing")


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


def streamed(
    steps: list[PipelineStep], *items: Any, keep_thread: Callable[[], RunThread] | None = None
) -> AsyncIterator[Any]:
    async def given() -> AsyncIterator[Any]:
        for item in items:
            yield item

    return Stream("p", 7, print, keep_thread).through(steps, given())


async def run(steps: list[PipelineStep], *items: Any, keep_thread: Callable[[], RunThread] | None = None) -> list[Any]:
    return [out async for out in streamed(steps, *items, keep_thread=keep_thread)]


class Source:
    """A plain generator and an async one that note whether they were closed."""

    def __init__(self, number: int = 10 * MOST) -> None:
        self.number = number
        self.given = 0
        self.closed = 0
        self.closed_in = 0  # the thread
        self.waits_at: int | None = None
        self.entered, self.gate = threading.Event(), threading.Event()

    @property
    def plain(self) -> PipelineStep:
        @one_to_many(retries=0)
        def numbers(item: int) -> Iterator[int]:
            try:
                for n in range(self.number):
                    if n == self.waits_at:
                        self.entered.set()
                        assert self.gate.wait(PATIENCE)
                    self.given += 1
                    yield n
            finally:
                self.closed += 1
                self.closed_in = threading.get_ident()

        step: PipelineStep = numbers
        return step

    @property
    def async_(self) -> PipelineStep:
        @one_to_many(retries=0)
        async def numbers(item: int) -> AsyncIterator[int]:
            try:
                for n in range(self.number):
                    yield n
            finally:
                await asyncio.sleep(0)
                self.closed += 1
                self.closed_in = threading.get_ident()

        step: PipelineStep = numbers
        return step


@many_to_one
async def first(numbers: AsyncIterator[int]) -> int:
    async for number in numbers:
        return number
    return -1


@many_to_many
async def passed(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    async for number in numbers:
        yield number


@one_to_one(retries=0)
async def fail(number: int) -> int:
    raise ValueError(number)


async def test_sync_functions_of_a_run_share_a_thread_and_async_ones_the_loop() -> None:
    seen: list[tuple[str, int]] = []

    @one_to_many
    def expand(item: int) -> Iterator[int]:
        for n in range(3 * MOST):
            seen.append(("expand", threading.get_ident()))
            yield n

    @one_to_one
    def plain(item: int) -> int:
        seen.append(("plain", threading.get_ident()))
        return item

    @one_to_one
    async def awaited(item: int) -> int:
        seen.append(("awaited", threading.get_ident()))
        return item

    out = await run([expand, plain, awaited], 1)

    here = threading.get_ident()
    assert out == [*range(3 * MOST)]
    [(_, thread)] = {pair for pair in seen if pair[0] == "expand"}
    assert set(seen) == {("expand", thread), ("plain", thread), ("awaited", here)}
    assert thread != here


async def test_a_sync_step_that_blocks_delays_no_other_run() -> None:
    reached, gate = threading.Event(), threading.Event()

    @one_to_one
    def blocks(item: int) -> bool:
        reached.set()
        return gate.wait(PATIENCE)

    task = asyncio.create_task(run([blocks], 1))
    await eventually(reached.is_set)
    gate.set()

    assert await task == [True]


async def test_other_runs_proceed_while_async_steps_never_wait() -> None:
    """A million items through steps that await nothing must not delay other tasks of the loop."""
    turns = 0

    @one_to_many
    async def count(item: int) -> AsyncIterator[int]:
        n = 0
        while turns < 3 and n < 5_000_000:
            yield n
            n += 1

    @one_to_one
    async def same(number: int) -> int:
        return number

    @many_to_one
    async def last(numbers: AsyncIterator[int]) -> int:
        number = 0
        async for number in numbers:  # noqa: B007 - the last one counts
            pass
        return number

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await run([count, same, last], 1)
    others.cancel()

    assert turns >= 3


async def test_an_item_of_a_sync_step_is_retried_until_it_has_yielded() -> None:
    tries: list[str] = []

    @one_to_many(retries=2, backoff=at_once)
    def late(item: str) -> Iterator[str]:
        tries.append(item)
        if item == "early" and len(tries) < 3:
            raise ValueError("at first")
        yield item
        if item == "late":
            raise ValueError("after something")

    @one_to_one(retries=1, backoff=at_once)
    def fragile(item: str) -> str:
        tries.append(f"fragile {item}")
        if tries.count(f"fragile {item}") == 1:
            raise StopIteration
        return item

    out = await run([late, fragile], "early")
    stream: Any = streamed([late], "late")
    given = await anext(stream)
    with pytest.raises(ValueError, match="after something"):
        await anext(stream)

    assert (out, given) == (["early"], "late")
    assert tries == ["early", "early", "early", "fragile early", "fragile early", "late"]


async def test_a_sync_function_may_return_a_coroutine_or_an_async_generator() -> None:
    async def awaited(item: int) -> list[int]:
        return [item, item]

    async def numbers(item: int) -> AsyncIterator[int]:
        yield item + 1

    @one_to_many
    def wrapped(item: int) -> Any:
        return awaited(item)

    @one_to_many
    def generated(item: int) -> Any:
        return numbers(item)

    @one_to_one
    def later(item: int) -> Any:
        return asyncio.sleep(0, item)

    assert await run([wrapped, generated, later], 1) == [2, 2]


@pytest.mark.parametrize("how", ["plain", "async_"])
@pytest.mark.parametrize("end", ["a later step fails", "a later step stops early", "the reader stops"])
async def test_a_generator_that_is_not_read_to_its_end_is_closed(how: str, end: str) -> None:
    source = Source()
    step = getattr(source, how)

    match end:
        case "a later step fails":
            with pytest.raises(ValueError, match="0"):
                await run([step, passed, fail], 1)
        case "a later step stops early":
            assert await run([step, passed, first], 1) == [0]
        case _:
            stream: Any = streamed([step, passed], 1)
            assert await anext(stream) == 0
            await stream.aclose()

    assert source.closed == 1
    assert (source.closed_in == threading.get_ident()) is (how == "async_")


async def test_a_cancelled_run_does_not_wait_for_its_thread_which_then_closes() -> None:
    source = Source()
    source.waits_at = 5
    task = asyncio.create_task(run([source.plain, passed], 1))
    await eventually(source.entered.is_set)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    closed_before = source.closed
    source.gate.set()
    await eventually(lambda: source.closed)

    assert (closed_before, source.closed, source.given) == (0, 1, 6)


@pytest.mark.parametrize("how", ["plain", "async_"])
async def test_a_generator_cancelled_between_two_items_is_closed_before_the_end(how: str) -> None:
    source, waits = Source(), asyncio.Event()

    @one_to_one
    async def wait(number: int) -> None:
        waits.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run([getattr(source, how), wait], 1))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert source.closed == 1


async def test_a_generator_keeps_its_context_and_wrappers_between_items() -> None:
    """One run is wrapped once, as one sync step; and the wrapper gets its failure."""
    said: list[str] = []

    @contextmanager
    def surrounding() -> Iterator[None]:
        token = around.set("surrounded")
        try:
            yield
            said.append("well")
        except ValueError as error:
            said.append(str(error))
            raise
        finally:
            around.reset(token)

    @one_to_many
    def numbers(item: int) -> Iterator[int]:
        assert around.get() == "surrounded"
        token = around.set("of the generator")
        yield from range(2 * MOST)
        assert around.get() == "of the generator"
        around.reset(token)

    out = await run([numbers], 1, keep_thread=lambda: RunThread(None, surrounding))
    with pytest.raises(ValueError, match="0"):
        await run([numbers, fail], 1, keep_thread=lambda: RunThread(None, surrounding))

    assert len(out) == 2 * MOST
    assert (said, around.get()) == (["well", "0"], "nothing")


async def test_a_wrapper_that_fails_is_an_error_of_the_run() -> None:
    @contextmanager
    def shut() -> Iterator[None]:
        raise ConnectionError("no entry")
        yield

    @contextmanager
    def stuck() -> Iterator[None]:
        yield
        raise ConnectionError("no way out")

    @one_to_one(retries=0)
    def same(item: int) -> int:
        return item

    for surrounding, said in ((shut, "no entry"), (stuck, "no way out")):
        with pytest.raises(ConnectionError, match=said):
            await run([same], 1, keep_thread=lambda: RunThread(None, surrounding))  # noqa: B023 - called right away
