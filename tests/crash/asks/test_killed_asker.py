"""SIGKILL at every point between opening a question and resuming by its answer: asked once, answered once."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Handle
from stepwell._runtime.worker import Worker
from stepwell.testing import Harness
from tests.asks.machines import Batch, Expense
from tests.conftest import MakeHarness
from tests.crash.conftest import StartWorker
from tests.support.ask_process import CHUNK, CREATE_SENDINGS, Noting
from tests.support.asked import problems_in
from tests.support.processes import WorkerProcess
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=200)
ITEMS = 2 * CHUNK + 1
MODULE = "ask_process"
YES = {"approved": True}


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    harness = await make_harness([Expense, Batch])
    await harness.sql(CREATE_SENDINGS)
    return harness


def survivor(h: Harness) -> Any:
    """A worker in this process, which goes on where a killed one was."""
    return h.another_engine(transports=[Noting(h.url)], reap=SOON)


async def sendings(h: Harness) -> list[tuple[int, int]]:
    """(attempt, pid) of every sending."""
    return [tuple(row) for row in await h.sql("select attempt, pid from public.sendings order by number")]


async def open_questions(h: Harness) -> list[str]:
    rows = await h.sql("select id::text from stepwell.interactions where status = 'dispatched' order by item")
    return [row["id"] for row in rows]


async def counted(h: Harness) -> tuple[int, int, int]:
    """How many questions there are, how many of them are answered, and how many units."""
    [row] = await h.sql(
        "select count(*), count(*) filter (where status = 'completed'), "
        "(select count(*) from stepwell.await_units) from stepwell.interactions"
    )
    return tuple(row)  # type: ignore[return-value]


async def assert_sound(h: Harness, worker: Worker) -> None:
    connection = await asyncpg.connect(h.url)
    assert await problems_in(connection) == []
    await connection.close()
    assert worker.tally.reconciled == 0


@pytest.mark.parametrize(
    ("point", "nth", "asked", "sent_before", "attempts"),
    [
        ("executor.returned", 1, 0, 0, [1]),
        ("flusher.before_commit", 1, 0, 0, [1]),
        ("flusher.committed", 1, 1, 0, [1]),
        ("dispatcher.claimed", 1, 1, 0, [2]),
        ("dispatcher.sent", 1, 1, 1, [1, 2]),
        ("dispatcher.recorded", 1, 1, 1, [1]),
    ],
)
async def test_a_worker_killed_between_asking_and_the_answer_asks_once_and_sends_at_least_once(
    h: Harness, start_worker: StartWorker, point: str, nth: int, asked: int, sent_before: int, attempts: list[int]
) -> None:
    """Digest, gap 3: a crash between the claim of a question and its sending sends again."""
    expense = await h.engine.start(Expense, {"amount": 7, "transport": "there"})
    killed = await start_worker(h.url, module=MODULE, crash=point, nth=nth)
    assert await killed.ended() == -signal.SIGKILL
    assert (await counted(h), len(await sendings(h))) == ((asked, 0, asked), sent_before)

    async with survivor(h) as engine, engine.worker() as worker:
        [question] = await eventually(lambda: open_questions(h))
        await engine.complete(interaction=question, reply=YES)
        done = await expense.wait(timeout=30)
        await assert_sound(h, worker)

    assert (done.status, done.result["approved"]) == ("done", True)
    assert await counted(h) == (1, 1, 1)
    assert [attempt for attempt, _ in await sendings(h)] == attempts
    assert [pid == killed.pid for _, pid in await sendings(h)][:sent_before] == [True] * sent_before


@pytest.mark.parametrize("point", ["claimer.claimed", "executor.begun", "executor.returned"])
async def test_a_worker_killed_after_the_answer_lets_another_resume_and_asks_nobody_again(
    h: Harness, start_worker: StartWorker, point: str
) -> None:
    async with survivor(h) as engine:
        async with engine.worker():
            expense = await h.engine.start(Expense, {"amount": 7, "transport": "there"})
            [question] = await eventually(lambda: open_questions(h))
        await engine.complete(interaction=question, reply=YES, actor="ana")
    killed = await start_worker(h.url, module=MODULE, crash=point)
    assert await killed.ended() == -signal.SIGKILL

    async with survivor(h) as engine, engine.worker() as worker:
        done = await expense.wait(timeout=30)
        await assert_sound(h, worker)

    assert (done.status, done.result["approved"], done.result["actor"]) == ("done", True, "ana")
    assert await counted(h) == (1, 1, 1)
    assert len(await sendings(h)) == 1


@pytest.mark.parametrize(
    ("point", "nth", "asked"),
    [
        ("filler.appended", 1, CHUNK),
        ("filler.appended", 2, 2 * CHUNK),
        ("filler.appended", 3, ITEMS),
        ("flusher.before_commit", 1, ITEMS),  # before the park
        ("flusher.committed", 1, ITEMS),
    ],
)
async def test_a_worker_killed_while_it_asks_about_many_is_followed_by_one_that_asks_about_the_rest(
    h: Harness, start_worker: StartWorker, point: str, nth: int, asked: int
) -> None:
    batch = await h.engine.start(Batch, {"items": list(range(ITEMS)), "transport": "there", "window": ITEMS - 2})
    killed = await start_worker(h.url, module=MODULE, crash=point, nth=nth)
    assert await killed.ended() == -signal.SIGKILL
    assert await counted(h) == (asked, 0, 1)
    before = await ids(h)

    async with survivor(h) as engine, engine.worker() as worker:
        done = await answered_all(h, batch)
        await assert_sound(h, worker)

    assert (done.status, done.result) == ("done", [[n, "completed", 100 + n] for n in range(ITEMS)])
    assert (await ids(h))[:asked] == before
    assert await counted(h) == (ITEMS, ITEMS, 1)


async def ids(h: Harness) -> list[str]:
    return [row["id"] for row in await h.sql("select id::text from stepwell.interactions order by item")]


async def answered_all(h: Harness, batch: Handle[Any]) -> Any:
    """Answer whatever is out until the batch has ended."""
    ended = asyncio.create_task(batch.wait(timeout=30))
    while not ended.done():
        rows = await h.sql("select id::text, item from stepwell.interactions where status = 'dispatched'")
        await asyncio.gather(*(h.engine.complete(interaction=row["id"], reply=100 + row["item"]) for row in rows))
        await asyncio.wait([ended], timeout=0.02)
    return ended.result()


@pytest.mark.parametrize(
    ("point", "before"), [("completing.found", "dispatched"), ("completing.admitted", "completed")]
)
async def test_who_is_killed_while_answering_has_answered_or_has_not(
    h: Harness, start_worker: StartWorker, point: str, before: str
) -> None:
    batch = await h.engine.start(Batch, {"items": [1]})
    async with survivor(h) as engine, engine.worker(poll=SOON, max_poll=SOON) as worker:
        [question] = await eventually(lambda: open_questions(h))
        killed = await answering(start_worker, h, question, point)
        assert await killed.ended() == -signal.SIGKILL
        [row] = await h.sql("select status from stepwell.interactions")
        assert row["status"] == before

        again = await h.engine.complete(interaction=question, reply=7)
        done = await batch.wait(timeout=30)
        await assert_sound(h, worker)

    assert again.is_duplicate is (before == "completed")
    assert (done.status, done.result) == ("done", [[0, "completed", 7]])


async def answering(start_worker: StartWorker, h: Harness, question: str, point: str) -> WorkerProcess:
    return await start_worker(
        h.url, module=MODULE, crash=point, options=["--answer", question, "--reply", "7"]
    )


async def test_who_dies_in_the_middle_of_its_transaction_has_changed_nothing(h: Harness) -> None:
    batch = await h.engine.start(Batch, {"items": [1, 2], "window": 1})
    async with survivor(h) as engine, engine.worker() as worker:
        await batch.wait(until="settled", timeout=30)
        [question] = await open_questions(h)
        dying = await asyncpg.connect(h.url)
        await dying.execute("begin")
        await dying.fetch("select * from stepwell.complete(interaction => $1, reply => '1')", question)
        dying.terminate()

        again = await h.engine.complete(interaction=question, reply=2)
        await assert_sound(h, worker)

    assert not again.is_duplicate
    assert (await counted(h))[:2] == (2, 1)
