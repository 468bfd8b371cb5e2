"""The one thread of a run: no call waits for another run's thread, and an abandoned thread ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell._process.threads import RunThread

PATIENCE = 30


async def test_calls_run_in_order_in_one_thread_even_after_an_abandoned_one() -> None:
    pool, gate, done = ThreadPoolExecutor(4), threading.Event(), []
    thread = RunThread(pool)

    def note(name: str) -> int:
        done.append(name)
        return threading.get_ident()

    first = await thread.call(note, "first")
    waiting = asyncio.create_task(thread.call(gate.wait, PATIENCE))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await thread.finish(note, "last")
    await thread.end()
    done_before = list(done)
    gate.set()
    await thread.left
    pool.shutdown()

    assert (done_before, done) == (["first"], ["first", "last"])
    assert first != threading.get_ident()


async def test_a_call_that_no_thread_will_run_is_cancelled() -> None:
    """A worker that stops closes its pool; a run that still waits for a thread of it must not wait for ever."""
    pool, gate = ThreadPoolExecutor(1), threading.Event()
    pool.submit(gate.wait, PATIENCE)
    thread = RunThread(pool)
    waiting = asyncio.create_task(thread.call(int))
    await asyncio.sleep(0)

    pool.shutdown(wait=False, cancel_futures=True)

    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()


def test_a_thread_ends_after_its_loop_is_closed() -> None:
    """Else the process would wait for it when it ends."""
    pool = ThreadPoolExecutor(1)
    loop = asyncio.new_event_loop()

    async def begin() -> int:
        called: int = await RunThread(pool).call(lambda: 7)
        return called

    assert loop.run_until_complete(begin()) == 7
    loop.close()

    pool.shutdown(wait=True)
