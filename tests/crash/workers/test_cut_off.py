"""Steps that cancel the tasks of their process or stop its loop: they count as crashes; a drain does not."""

from __future__ import annotations

import signal

import pytest

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, effects, is_all_over
from tests.support.crash_app import Canceller, Endless, Innocent, Neighbour
from tests.support.waiting import eventually

MOST_CRASHES = 3
MOST_PROCESSES = 12


async def _is_over_or_ended(h: Harness, is_alive: bool) -> bool:
    return not is_alive or await is_all_over(h)


@pytest.mark.parametrize("how", ["all", "but main", "main alone", "stop"])
async def test_a_step_that_ends_the_loop_fails_after_max_crashes(
    h: Harness, start_worker: StartWorker, how: str
) -> None:
    canceller = await h.engine.start(Canceller, {"how": how})
    neighbours = await h.engine.start_many([Neighbour] * 5)

    for _ in range(MOST_PROCESSES):
        worker = await start_worker(h.url, max_crashes=MOST_CRASHES, reap=0.05, drain_timeout=0.5)
        await eventually(lambda worker=worker: _is_over_or_ended(h, worker.is_alive))
        if await is_all_over(h):
            break
        assert await worker.ended() != 0

    failed = await canceller.get()
    assert (failed.status, failed.error and failed.error.type) == ("failed", "CrashLoop")
    assert len(await effects(h, canceller.id)) == MOST_CRASHES
    assert [await neighbour.result(timeout=0) for neighbour in neighbours] == ["worked"] * 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_step_that_a_drain_cuts_off_counts_an_attempt_and_no_crash(
    h: Harness, start_worker: StartWorker, number: int
) -> None:
    endless = await h.engine.start(Endless)
    worker = await start_worker(h.url, drain_timeout=0.0)
    await worker.ready()
    await eventually(lambda: effects(h, endless.id))

    worker.send(number)
    await worker.ended()

    again = await start_worker(h.url, reap=0.05)
    await eventually(lambda: _ran(h, endless.id, 2))
    assert [(attempt, crashes) for _, attempt, crashes, _, _ in await effects(h, endless.id)] == [(0, 0), (1, 0)]
    await again.kill()


@pytest.mark.parametrize("nth", range(1, 400, 57))
async def test_ctrl_c_at_any_callback_of_a_workers_start_ends_the_process(
    h: Harness, start_worker: StartWorker, nth: int
) -> None:
    """Some 340 callbacks run until the worker is ready; the last of these come after."""
    await h.engine.start_many([Endless, Innocent])

    worker = await start_worker(h.url, drain_timeout=0.0, options=["--interrupt", str(nth)])

    assert await worker.ended() == 1  # by KeyboardInterrupt


async def _ran(h: Harness, instance: int, times: int) -> bool:
    return len(await effects(h, instance)) == times
