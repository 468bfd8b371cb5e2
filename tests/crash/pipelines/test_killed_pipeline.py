"""SIGKILL at every point of a pipeline: in a segment, between chunks, in an item and in the last one, around the
release of its parent, and in the step over all. The result is the same, in the order of the items."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Handle
from stepwell._worker.worker import Worker
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.crash.conftest import StartWorker
from tests.features.pipelines.examples import Numbers
from tests.features.pipelines.streams import BROKEN
from tests.support.ask_process import CHUNK, CREATE_SENDINGS, Noting
from tests.support.asked import problems_in
from tests.support.pipeline_process import CREATE_RUNS, WINDOW, ranked, world
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=200)
ITEMS = 2 * CHUNK + 1
EXPECTED = [[number, 100 + number] for number in range(ITEMS)]


@pytest.fixture
async def h(make_harness: MakeHarness) -> AsyncIterator[Harness]:
    harness = await make_harness([ranked])
    await harness.sql(CREATE_SENDINGS)
    await harness.sql(CREATE_RUNS)
    await world.open(harness.url)
    yield harness
    await world.close()


def survivor(h: Harness) -> Any:
    """A worker in this process, which continues after a killed one."""
    return h.another_engine(transports=[Noting(h.url)], reap=SOON)


async def killed(h: Harness, start_worker: StartWorker, how: str, nth: int = 1) -> int:
    """Run a worker until it dies, at a point or in a step; returns its pid."""
    where: dict[str, Any] = {"crash": how, "nth": nth} if "." in how else {"options": ["--fatal", how]}
    worker = await start_worker(h.url, module="pipeline_process", **where)
    assert await worker.ended() == -signal.SIGKILL
    return worker.pid


async def answer(h: Harness, *items: int) -> None:
    """Complete these items, or all open ones."""
    rows = await h.sql("select id::text, item from stepwell.interactions where status = 'dispatched'")
    chosen = [row for row in rows if not items or row["item"] in items]
    random.Random(0).shuffle(chosen)  # noqa: S311 - an order, not a secret
    for row in chosen:
        reply = {"number": row["item"], "points": 100 + row["item"]}
        await h.engine.complete(interaction=row["id"], reply=reply)


async def finished(h: Harness, run: Handle[Any]) -> Any:
    """Complete all open interactions until the pipeline has ended."""
    ended = asyncio.create_task(run.wait(timeout=30))
    while not ended.done():
        await answer(h)
        await asyncio.wait([ended], timeout=0.02)
    return ended.result()


async def runs(h: Harness, step: str) -> Counter[int]:
    return Counter(row["number"] for row in await h.sql("select number from public.runs where step = $1", step))


async def assert_whole(h: Harness, run: Handle[Any], worker: Worker) -> None:
    """What holds whichever process was killed: the result in input order; each item asked, admitted and continued
    once."""
    ended = await run.get()
    assert (ended.status, ended.result) == ("done", EXPECTED)
    rows = await h.sql("select status, count(*) from stepwell.interactions group by 1")
    assert [tuple(row) for row in rows] == [("completed", ITEMS)]
    [unit] = await h.sql("select status, opened, resolved, continuing, visit from stepwell.await_units")
    assert tuple(unit) == ("completed", ITEMS, ITEMS, 0, 1)
    gone_on = await h.sql("select child_index, status from stepwell.instances where continues_unit_id is not null "
                          "order by child_index")  # fmt: skip
    assert [tuple(row) for row in gone_on] == [(number, "done") for number in range(ITEMS)]
    connection = await asyncpg.connect(h.url)
    assert await problems_in(connection) == []
    assert await connection.fetch(BROKEN) == []
    await connection.close()
    assert worker.stats.reconciled == 0


@pytest.mark.parametrize(
    ("how", "nth", "asked"),
    [
        ("count:0", 1, 0),  # inside the segment, before any chunk
        (f"count:{CHUNK + 1}", 1, CHUNK),  # inside it, with one chunk asked
        ("ask_each.appended", 2, 2 * CHUNK),  # between two chunks
        ("committer.before_commit", 1, ITEMS),  # before the park
    ],
)
async def test_after_a_worker_is_killed_in_a_segment_another_asks_about_the_rest(
    h: Harness, start_worker: StartWorker, how: str, nth: int, asked: int
) -> None:
    """Scenario 48: an item that was asked about is not asked about again; the others are."""
    run = await h.engine.start(ranked, Numbers(ITEMS))
    await killed(h, start_worker, how, nth)
    before = [row["id"] for row in await h.sql("select id from stepwell.interactions order by item")]
    assert len(before) == asked

    async with survivor(h) as engine, engine.worker() as worker:
        await finished(h, run)
        await assert_whole(h, run, worker)

    after = [row["id"] for row in await h.sql("select id from stepwell.interactions order by item")]
    assert after[:asked] == before
    assert await runs(h, "judge") == dict.fromkeys(range(ITEMS), 1)
    sent = Counter(row["question"] for row in await h.sql("select question from public.sendings"))
    assert (set(sent), max(sent.values()) <= 2) == (set(after), True)  # at least once: one may be sent again


async def asked_all(h: Harness, *, but: int = 0) -> Handle[Any]:
    """A pipeline with all interactions completed, and all items ended but the last of them, which still have to run.

    No worker runs.
    """
    run = await h.engine.start(ranked, Numbers(ITEMS))
    async with survivor(h) as engine, engine.worker():
        while len(await runs(h, "judge")) < ITEMS - but:
            await answer(h, *range(ITEMS - but))
        done = "select count(*) from stepwell.instances where continues_unit_id is not null and status = 'done'"
        await eventually(lambda: _is(h, done, ITEMS - but))
        sent = "select count(*) from stepwell.interactions where status = 'dispatched'"
        await eventually(lambda: _is(h, sent, but))
    await answer(h)
    return run


async def _is(h: Harness, query: str, number: int) -> bool:
    return bool((await h.sql(query))[0]["count"] == number)


@pytest.mark.parametrize(
    ("left", "how", "nth", "twice"),
    [
        (WINDOW, f"judge:{ITEMS - 2}", 1, True),  # inside an item, among others
        (1, f"judge:{ITEMS - 1}", 1, True),  # inside the last one
        (1, "committer.before_commit", 1, True),  # the last one has ended, its end is not committed
        (1, "committer.committed", 1, False),  # its end and the release are committed, the parent has not resumed
    ],
)
async def test_after_a_worker_is_killed_in_an_item_another_runs_it_again(
    h: Harness, start_worker: StartWorker, left: int, how: str, nth: int, twice: bool
) -> None:
    """Scenarios 39, 40: without another completion; the other items are not run again, and the parent is released
    once."""
    run = await asked_all(h, but=left)
    pid = await killed(h, start_worker, how, nth)
    assert await h.sql("select from public.runs where step = 'judge' and pid = $1", pid)

    async with survivor(h) as engine, engine.worker() as worker:
        await run.wait(timeout=30)
        await assert_whole(h, run, worker)

    ran = await runs(h, "judge")
    if left == 1:
        assert ran == {**dict.fromkeys(range(ITEMS), 1), ITEMS - 1: 1 + twice}
    else:
        assert all(ran[number] == 1 for number in range(ITEMS - left))
    assert await runs(h, "rank") == dict.fromkeys(range(ITEMS), 1)
    assert len(await h.sql("select from public.sendings")) == ITEMS


@pytest.mark.parametrize(("how", "nth"), [("rank:3", 1), ("committer.before_commit", 2), ("executor.begun", 2)])
async def test_after_a_worker_is_killed_at_the_release_another_reads_all_outputs(
    h: Harness, start_worker: StartWorker, how: str, nth: int
) -> None:
    """Scenarios 24, 55, 56: between the release and the commit of the step over all; no external system is asked
    again."""
    run = await asked_all(h, but=1)
    await killed(h, start_worker, how, nth)
    assert (await runs(h, "judge"))[ITEMS - 1] == 1
    ranked_before = await runs(h, "rank")

    async with survivor(h) as engine, engine.worker() as worker:
        await run.wait(timeout=30)
        await assert_whole(h, run, worker)

    assert await runs(h, "judge") == dict.fromkeys(range(ITEMS), 1)
    assert await runs(h, "rank") == {number: 1 + ranked_before[number] for number in range(ITEMS)}
    assert len(await h.sql("select from public.sendings")) == ITEMS
