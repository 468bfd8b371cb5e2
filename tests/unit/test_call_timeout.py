"""The bound of every call: it ends with CallTimeout, and a cancel from elsewhere stays a cancel."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import CallTimeout
from stepwell._client.call_timeout import Calls

calls = Calls(timedelta(seconds=30))


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_call_that_does_not_end_raises_call_timeout() -> None:
    with pytest.raises(CallTimeout, match="start did not end within 0 s"):
        await calls.within("start", 0, never())

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_timeout_error_of_the_call_itself_is_passed_on() -> None:
    async def fail() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await calls.within("start", 30, fail())


async def test_a_cancel_by_the_caller_is_not_a_timeout() -> None:
    caller = asyncio.create_task(calls.within("start", 30, never()))
    await asyncio.sleep(0)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_cancel_at_the_instant_of_the_timeout_wins() -> None:
    caller = asyncio.create_task(calls.within("start", 0, never()))
    asyncio.get_running_loop().call_soon(caller.cancel)

    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_call_after_a_cancel_that_was_caught_still_times_out() -> None:
    async def clean_up() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            await calls.within("cancel", 0, never())

    caller = asyncio.create_task(clean_up())
    await asyncio.sleep(0)

    caller.cancel()

    with pytest.raises(CallTimeout):
        await caller
