"""An instance that kills every worker that runs it ends as failed, and other instances count no crash."""

from __future__ import annotations

import signal

from stepwell._core.instance import SUSPECT_AFTER
from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, effects, is_all_over, is_executing
from tests.support.crash_app import Innocent, Killer

MOST_WORKERS = 10
MAX_CRASHES = 3


async def test_an_instance_that_always_kills_its_worker_fails_and_others_end_done(
    h: Harness, start_worker: StartWorker
) -> None:
    """Scenario 21."""
    *before, killer, last = await h.engine.start_many([*[Innocent] * 10, Killer, Innocent])
    neighbours = [*before, last, *await h.engine.start_many([Innocent] * 9)]

    deaths = await supervise(h, start_worker)

    end = await killer.get()
    assert end.status == "failed"
    assert end.crashes == end.attempt == deaths == MAX_CRASHES
    assert end.error is not None
    assert end.error.type == "CrashLoop"
    assert end.error.message == f"step 'kill' ended its worker {MAX_CRASHES} times in a row (max_crashes)"
    assert [(await n.get()).status for n in neighbours] == ["done"] * 20
    assert [(await n.get()).result for n in neighbours] == ["worked"] * 20
    assert {(await effects(h, n.id))[-1][2] for n in neighbours} == {SUSPECT_AFTER}  # hit, suspected, cleared
    assert not await is_executing(h)


async def supervise(h: Harness, start_worker: StartWorker) -> int:
    """Start a worker whenever the last one died, until no row is left to run; returns how many died."""
    for deaths in range(MOST_WORKERS):
        worker = await start_worker(h.url, max_crashes=MAX_CRASHES)
        while worker.is_alive and not await is_all_over(h):
            await worker.ended_within(0.05)
        if worker.is_alive:
            await worker.stop()
            return deaths
        assert await worker.ended() == -signal.SIGKILL
    raise AssertionError(f"{MOST_WORKERS} workers have died")

