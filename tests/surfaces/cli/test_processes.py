"""`stepwell worker --processes`: several workers under one parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.cli.app import greet
from tests.surfaces.cli.processes import APP, running, stepwell


async def pids(h: Harness) -> set[int]:
    return {worker.pid for worker in await h.engine.insights.workers() if worker.alive}


def has_ended(pid: int) -> Callable[[], bool]:
    def look() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return look


async def test_each_process_has_a_lease_of_its_own_and_all_drain_at_sigterm(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    async with running("worker", APP, "--processes", "2", "--queue", "default=3", url=h.url) as parent:
        ready = [await parent.line() for _ in range(2)]
        workers = await pids(h)
        result = await (await h.engine.start(greet, {"name": "tea"})).result(timeout=30)
        parent.send(signal.SIGTERM)
        ended = await parent.ended()

    assert all(line.endswith(" ready: default=3") for line in ready)
    assert len(set(ready)) == len(workers) == 2
    assert parent.pid not in workers
    assert (result, ended.code) == ({"hello": "tea"}, 0)
    assert await pids(h) == set()


async def test_a_process_that_is_killed_is_replaced(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    async with running("worker", APP, "--processes", "2", url=h.url) as parent:
        for _ in range(2):
            await parent.line()
        before = await pids(h)
        os.kill(min(before), signal.SIGKILL)
        await parent.line()
        after = await pids(h)

        assert max(before) in after
        assert len(after - before) == 1
        parent.send(signal.SIGINT)
        assert (await parent.ended()).code == 0


async def test_processes_end_when_their_parent_is_killed(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    async with running("worker", APP, "--processes", "2", url=h.url) as parent:
        for _ in range(2):
            await parent.line()
        children = await pids(h)
        parent.send(signal.SIGKILL)
        for child in children:
            await eventually(has_ended(child))

    assert await pids(h) == set()


async def test_an_error_common_to_all_processes_ends_all_with_its_exit_code(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    ended = await stepwell("worker", "tests.surfaces.cli.app:engin", "--processes", "2", url=h.url)
    too_many = await stepwell("worker", APP, "--processes", "0", url=h.url)

    assert ended.code == 2
    assert "did you mean 'engine'?" in ended.err
    assert (too_many.code, too_many.err) == (2, "stepwell: --processes: 0 is out of range (1 to 64)\n")
