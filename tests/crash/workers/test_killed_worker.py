"""SIGKILL of a worker process at every point between claim and commit: nothing is lost, nothing committed reruns."""

from __future__ import annotations

import signal

import pytest

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, effects, is_executing, worker_ids
from tests.support.crash_app import Trail
from tests.support.waiting import eventually

TRAIL = ["first", "second", "third"]
IN_STEP = "in the step"


@pytest.mark.parametrize(
    ("ahead", "point", "nth", "step", "ran_before", "has_begun"),
    [
        (0, "claimer.before_claim", 1, "first", False, False),
        (0, "claimer.claimed", 1, "first", False, False),
        (0, "claimer.claimed", 1, "first", False, True),  # it is marked started by its claim
        (0, "executor.begun", 2, "second", False, True),
        (0, IN_STEP, 1, "second", True, True),
        (0, "executor.returned", 2, "second", True, True),
        (0, "committer.before_commit", 2, "second", True, True),
        (0, "committer.committed", 2, "third", False, False),
        (16, IN_STEP, 1, "second", True, True),
        (16, "committer.before_commit", 2, "second", True, True),
        (16, "committer.committed", 2, "third", False, True),  # whether it had started cannot be known
    ],
)
async def test_after_a_worker_is_killed_at_any_point_another_continues_its_work(
    h: Harness, start_worker: StartWorker, ahead: int, point: str, nth: int, step: str, ran_before: bool,
    has_begun: bool,
) -> None:  # fmt: skip
    """Scenarios 19 and 141."""
    key = None if has_begun else "k"  # a row with a key is not marked started by its claim
    trail = await h.engine.start(Trail, {"dies_in": "second" if point == IN_STEP else ""}, concurrency_key=key)
    killed = await start_worker(h.url, crash=None if point == IN_STEP else point, nth=nth, run_ahead=ahead)
    assert await killed.ended() == -signal.SIGKILL
    [left] = await h.sql("select step, attempt, crashes from stepwell.instances where id = $1", trail.id)
    assert tuple(left) == (step, 0, 0)

    survivor = await start_worker(h.url, reap=0.2)
    done = await trail.wait(timeout=30)

    assert (done.status, done.result) == ("done", TRAIL)
    before = [(name, 0, 0, killed.pid, "ran") for name in TRAIL[: TRAIL.index(step)]]
    interrupted = [(step, 0, 0, killed.pid, "ran")] if ran_before else []
    again = [(step, int(has_begun), int(has_begun), survivor.pid, "ran")]
    after = [(name, 0, 0, survivor.pid, "ran") for name in TRAIL[TRAIL.index(step) + 1 :]]
    assert await effects(h, trail.id) == before + interrupted + again + after
    assert not await is_executing(h)
    assert await is_eventually_forgotten(h, killed.pid)


async def test_a_dead_worker_of_another_host_is_expired_when_its_lease_has_run_out(
    h: Harness, start_worker: StartWorker
) -> None:
    """Scenario 139."""
    trail = await h.engine.start(Trail, {"dies_in": "first"})
    killed = await start_worker(h.url, lease=1.2, heartbeat=0.4)
    assert await killed.ended() == -signal.SIGKILL
    await h.sql("update stepwell.workers set host = 'elsewhere' where pid = $1", killed.pid)

    survivor = await start_worker(h.url, lease=1.2, heartbeat=0.4, reap=0.2)
    done = await trail.wait(timeout=30)

    assert (done.status, done.result) == ("done", TRAIL)
    assert [run[:4] for run in await effects(h, trail.id)][:2] == [
        ("first", 0, 0, killed.pid),
        ("first", 1, 1, survivor.pid),
    ]
    assert await is_eventually_forgotten(h, killed.pid)


async def is_eventually_forgotten(h: Harness, pid: int) -> bool:
    async def is_forgotten() -> bool:
        return not await worker_ids(h, pid)

    return await eventually(is_forgotten)
