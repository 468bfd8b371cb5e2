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


async def test_calls_with_the_default_time_share_a_timer_and_each_expires() -> None:
    soon = Calls(timedelta(milliseconds=20))
    ended = asyncio.get_running_loop().create_future()
    first, second = (asyncio.create_task(soon.within("start", None, never())) for _ in range(2))
    in_time = asyncio.create_task(soon.within("signal", None, asyncio.wait_for(ended, None)))
    await asyncio.sleep(0)

    ended.set_result("done")
    results = await asyncio.gather(first, second, in_time, return_exceptions=True)
    with pytest.raises(CallTimeout):  # the timer is set again for a call that begins later
        await soon.within("start", None, never())

    assert [type(result) for result in results[:2]] == [CallTimeout, CallTimeout]
    assert results[2] == "done"


async def test_a_call_in_another_loop_expires_by_its_own_timer() -> None:
    soon = Calls(timedelta(milliseconds=20))
    open_here = asyncio.create_task(soon.within("start", None, never()))
    await asyncio.sleep(0)

    def elsewhere() -> None:
        asyncio.run(soon.within("start", None, never()))

    with pytest.raises(CallTimeout):
        await asyncio.to_thread(elsewhere)
    with pytest.raises(CallTimeout):
        await open_here
