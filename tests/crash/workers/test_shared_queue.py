"""Two worker processes share a queue: every step is committed once."""

from __future__ import annotations

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, is_all_over
from tests.support.crash_app import Shared
from tests.support.waiting import eventually

INSTANCES = 1_000


async def test_two_workers_sharing_a_queue_run_and_commit_each_step_once(h: Harness, start_worker: StartWorker) -> None:
    workers = [await start_worker(h.url) for _ in range(2)]
    for worker in workers:
        await worker.ready()

    await h.engine.start_many([Shared] * INSTANCES)
    await eventually(lambda: is_all_over(h), 60)

    async def ask(question: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await h.sql(question)]

    claims_and_commits = 1 + 2, 2 + 2  # now and then one is released between its steps, for more urgent rows
    ended = await ask("select distinct status, fence, attempt, crashes from stepwell.instances")
    assert set(ended) <= {("done", fence, 0, 0) for fence in claims_and_commits}
    assert await ask("select count(*), count(distinct (instance, step)) from effects") == [(2 * INSTANCES,) * 2]
    assert await ask("select distinct pid from effects order by 1") == sorted((worker.pid,) for worker in workers)
