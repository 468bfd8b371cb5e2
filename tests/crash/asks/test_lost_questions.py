"""A real proxy between engine and Postgres loses what asks, sends or ends a question, or the answer to that.

Whatever is lost: each question is asked once, sent once, and lets its instance go on once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import DatabaseUnavailable, Engine, Handle, Undeliverable
from stepwell._runtime.worker import Worker
from stepwell._store.statements import statement
from stepwell.testing import Harness, armed
from tests.asks.looks import SECRET
from tests.asks.machines import Batch, Expense
from tests.support.asked import BROKEN
from tests.support.proxy import Mishap, Part, Proxy, proxy_to
from tests.support.shared_database import SharedHarness
from tests.support.transports import Recording
from tests.support.waiting import eventually

BEAT = timedelta(seconds=0.3)
EVERY = ("heartbeat", "poll", "max_poll")
PATIENCE = 20
YES = {"approved": True}
ITEMS = 3
PARTS = pytest.mark.parametrize("part", ["request", "answer"])


@dataclass
class Road:
    """An engine that reaches its database through a proxy only, and the transport by which it asks."""

    harness: Harness
    proxy: Proxy
    engine: Engine
    there: Recording

    def lose(self, part: Part, name: str, *, with_commit: bool = True) -> Mishap:
        return self.proxy.lose(part, statement(name), with_commit=with_commit)

    async def questions(self) -> list[tuple[str, str]]:
        """Id and status of all there are."""
        rows = await self.harness.sql("select id::text, status from stepwell.interactions order by item")
        return [tuple(row) for row in rows]

    async def out(self, number: int = 1) -> list[str]:
        """The questions, once so many are out."""

        async def ids() -> list[str]:
            return [id_ for id_, status in await self.questions() if status == "dispatched"]

        await eventually(lambda: _has(ids, number))
        return await ids()

    async def assert_ran_once(self, run: Handle[Any], worker: Worker, loss: Mishap) -> Any:
        """Wait for the end: the step that asks and the one that goes on ran once each. Returns the result."""
        ended = await run.wait(timeout=PATIENCE)
        await eventually(lambda: worker.tally.committed == 2)
        assert (loss.happened.is_set(), ended.status, ended.attempt) == (True, "done", 0)
        tally = worker.tally
        assert (tally.steps, tally.stale, tally.strays, tally.reconciled) == (2, 0, 0, 0)
        [row] = await self.harness.sql("select crashes, visit from stepwell.instances where id = $1", run.id)
        assert tuple(row) == (0, 1)
        assert await self.harness.sql(BROKEN) == []
        return ended.result


async def _has(ids: Any, number: int) -> bool:
    return len(await ids()) == number


@pytest.fixture
async def road(shared_url: str) -> AsyncIterator[Road]:
    there = Recording("there")
    options: dict[str, Any] = {"machines": [Expense, Batch], "transports": [there], "token_keys": {"k": SECRET}}
    async with (
        SharedHarness(shared_url, [Expense, Batch], token_keys={"k": SECRET}) as harness,
        proxy_to(harness.url) as proxy,
        Engine(proxy.url, **options, **dict.fromkeys(EVERY, BEAT)) as engine,
    ):
        yield Road(harness, proxy, engine, there)


async def batch(road: Road, transport: str = "inbox", window: int = ITEMS) -> Handle[Any]:
    return await road.engine.start(Batch, {"items": list(range(ITEMS)), "transport": transport, "window": window})


@PARTS
async def test_a_commit_that_asks_is_neither_repeated_nor_dropped(road: Road, part: Part) -> None:
    """Scenario 28: whoever can not tell whether its park has landed finds that out, and asks no second question."""
    expense = await road.engine.start(Expense)
    loss = road.lose(part, "units/open")

    async with road.engine.worker() as worker:
        [question] = await road.out()
        await road.engine.complete(interaction=question, reply=YES)
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["approved"], await road.questions()) == (True, [(question, "completed")])


@PARTS
@pytest.mark.parametrize("name", ["units/append", "units/settle"], ids=["a chunk", "the park"])
async def test_a_commit_that_asks_about_each_is_neither_repeated_nor_dropped(road: Road, name: str, part: Part) -> None:
    """Scenarios 28, 48: what a chunk has asked is not asked again, and who has asked about all parks once."""
    run = await batch(road)
    loss = road.lose(part, name)

    async with road.engine.worker() as worker:
        await asyncio.wait_for(loss.happened.wait(), PATIENCE)
        await run.wait(until="settled", timeout=PATIENCE)
        questions = await road.out(ITEMS)
        for item, question in enumerate(questions):
            await road.engine.complete(interaction=question, reply=100 + item)
        result = await road.assert_ran_once(run, worker, loss)

    assert result == [[item, "completed", 100 + item] for item in range(ITEMS)]
    assert await road.questions() == [(question, "completed") for question in questions]


@PARTS
@pytest.mark.parametrize("name", ["interactions/claim", "interactions/seal_taken", "interactions/record"])
async def test_a_question_is_sent_once_if_what_takes_signs_or_notes_it_is_lost(
    road: Road, name: str, part: Part
) -> None:
    """Scenario 82: what was taken and did not come back is given back, and goes out; what was sent is noted again."""
    expense = await road.engine.start(Expense, {"transport": "there", "token": True})
    losses: list[Mishap] = []
    road.there.at_open = ordered = asyncio.Event()  # no look before that: it would find nothing, or take the question

    def order(_: object) -> None:
        if not losses:
            losses.append(road.lose(part, name, with_commit=False))
            ordered.set()

    with armed("flusher.committed", fault=order):
        async with road.engine.worker() as worker:
            [question] = await road.out()
            [sent] = road.there.sent
            await road.engine.complete(token=sent.token, reply=YES)
            result = await road.assert_ran_once(expense, worker, losses[0])

    taken_twice = name == "interactions/seal_taken" or (name, part) == ("interactions/claim", "answer")
    assert (sent.interaction_id, sent.attempt) == (question, 1 + taken_twice)
    assert (result["approved"], len(road.there.sent)) == (True, 1)
    assert await road.questions() == [(question, "completed")]


@PARTS
async def test_an_answer_that_is_lost_on_the_short_way_is_brought_again(road: Road, part: Part) -> None:
    """Scenario 18: one plain question, one plain answer. Who brings it again is told what has become of it."""
    expense = await road.engine.start(Expense)
    async with road.engine.worker() as worker:
        [question] = await road.out()
        loss = road.lose(part, "interactions/answer_plain", with_commit=False)

        with pytest.raises(DatabaseUnavailable):
            await road.engine.complete(interaction=question, reply=YES, actor="ana")
        again = await road.engine.complete(interaction=question, reply=YES, actor="ana")
        result = await road.assert_ran_once(expense, worker, loss)

    assert again.is_duplicate is (part == "answer")
    assert (result["approved"], result["actor"], await road.questions()) == (True, "ana", [(question, "completed")])


@PARTS
@pytest.mark.parametrize(
    ("name", "number", "window"),
    [("answer_plain", 1, ITEMS), ("answer_plain", ITEMS, ITEMS), ("answer", 1, ITEMS - 1), ("admit", 2, ITEMS - 1)],
    ids=["alone", "together", "alone, with more to ask", "together, with more to ask"],
)
async def test_answers_about_items_that_are_lost_are_brought_again(
    road: Road, name: str, number: int, window: int, part: Part
) -> None:
    """Scenarios 18, 35: each is counted once, on the short way and on the long one."""
    run = await batch(road, window=window)
    async with road.engine.worker() as worker:
        await road.out(window)
        questions = [id_ for id_, _ in await road.questions()]
        loss = road.lose(part, f"interactions/{name}", with_commit=name == "admit")

        async def bring(first: int, behind: int) -> list[Any]:
            return await asyncio.gather(
                *(road.engine.complete(interaction=questions[n], reply=100 + n) for n in range(first, behind)),
                return_exceptions=True,
            )

        lost, again, _ = await bring(0, number), await bring(0, number), await bring(number, ITEMS)
        result = await road.assert_ran_once(run, worker, loss)

    assert [isinstance(error, DatabaseUnavailable) for error in lost] == [True] * number
    assert [one.is_duplicate for one in again] == [part == "answer"] * number
    assert result == [[item, "completed", 100 + item] for item in range(ITEMS)]


@PARTS
async def test_a_timeout_that_is_lost_happens_once(road: Road, part: Part) -> None:
    """Scenario 70: the question ends, and its instance goes on by it, whoever hears of that."""
    expense = await road.engine.start(Expense, {"seconds": 0.05})
    loss = road.lose(part, "interactions/expire")

    async with road.engine.worker() as worker:
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["status"], [status for _, status in await road.questions()]) == ("timed_out", ["timed_out"])


@PARTS
async def test_the_end_of_a_question_that_can_not_be_sent_happens_once_if_it_is_lost(road: Road, part: Part) -> None:
    road.there.acts = [Undeliverable("nobody there")]
    expense = await road.engine.start(Expense, {"transport": "there"})
    loss = road.lose(part, "interactions/fail")

    async with road.engine.worker() as worker:
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["status"], [status for _, status in await road.questions()]) == ("failed", ["failed"])
    assert len(road.there.sent) == 1
