"""Work on large texts is done beside the loop, and small work where it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from stepwell._client.completions.offload import LARGE, LargeTextThread
from stepwell.errors import EngineClosed


@pytest.fixture
def apart() -> Iterator[LargeTextThread]:
    made = LargeTextThread()
    yield made
    made.close()


async def test_only_large_work_runs_in_a_thread(apart: LargeTextThread) -> None:
    here = threading.get_ident()

    assert await apart.run(LARGE - 1, threading.get_ident) == here
    assert await apart.run(LARGE, threading.get_ident) != here
    assert await apart.run(LARGE, int, "7", base=8) == 7


@pytest.mark.parametrize("size", [0, LARGE])
async def test_an_error_in_the_thread_is_raised_to_the_caller(apart: LargeTextThread, size: int) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await apart.run(size, int, "x")


async def test_a_cancelled_caller_cancels_its_work(apart: LargeTextThread) -> None:
    began, go_on, done = threading.Event(), threading.Event(), list[int]()
    first = asyncio.create_task(apart.run(LARGE, lambda: (began.set(), go_on.wait(10))))
    second = asyncio.create_task(apart.run(LARGE, done.append, 2))
    await asyncio.to_thread(began.wait, 10)

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first
    await apart.run(LARGE, done.append, 3)

    assert done == [3]


async def test_a_closed_thread_finishes_its_work_and_refuses_the_rest() -> None:
    apart = LargeTextThread()
    began, go_on = threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        go_on.wait(10)
        return "done"

    running = asyncio.create_task(apart.run(LARGE, work))
    waiting = asyncio.create_task(apart.run(LARGE, work))
    await asyncio.to_thread(began.wait, 10)

    apart.close()
    go_on.set()

    assert await running == "done"
    with pytest.raises(EngineClosed):
        await waiting
    with pytest.raises(EngineClosed):
        await apart.run(LARGE, work)
