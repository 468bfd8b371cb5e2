"""A real proxy between engine and Postgres loses a request that inserts, sends or ends an interaction, or its reply.

Each interaction is inserted once, sent once, and wakes its instance once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import DatabaseUnavailable, Engine, Handle, Undeliverable
from stepwell._store.connection.sql_files import statement
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, armed
from tests.features.interactions.looks import SECRET
from tests.features.interactions.machines import Batch, Expense
from tests.support.asked import BROKEN
from tests.support.proxy import Mishap, Part, Proxy, proxy_to
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
    """An engine that reaches its database only through a proxy, and the transport by which it asks."""

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
        """The interactions, once this number is sent."""

        async def ids() -> list[str]:
            return [id_ for id_, status in await self.questions() if status == "dispatched"]

        await eventually(lambda: _has(ids, number))
        return await ids()

    async def assert_ran_once(self, run: Handle[Any], worker: Worker, loss: Mishap) -> Any:
        """Wait for the end: the step that asks and the step that continues ran once each. Returns the result."""
        ended = await run.wait(timeout=PATIENCE)
        await eventually(lambda: worker.stats.committed == 2)
        assert (loss.happened.is_set(), ended.status, ended.attempt) == (True, "done", 0)
        tally = worker.stats
        assert (tally.steps, tally.stale, tally.orphans, tally.reconciled) == (2, 0, 0, 0)
        [row] = await self.harness.sql("select crashes, visit from stepwell.instances where id = $1", run.id)
        assert tuple(row) == (0, 1)
        assert await self.harness.sql(BROKEN) == []
        return ended.result


async def _has(ids: Any, number: int) -> bool:
    return len(await ids()) == number


@pytest.fixture
async def road() -> AsyncIterator[Road]:
    there = Recording("there")
    options: dict[str, Any] = {"machines": [Expense, Batch], "transports": [there], "token_keys": {"k": SECRET}}
    async with (
        Harness([Expense, Batch], token_keys={"k": SECRET}) as harness,
        proxy_to(harness.url) as proxy,
        Engine(proxy.url, **options, **dict.fromkeys(EVERY, BEAT)) as engine,
    ):
        yield Road(harness, proxy, engine, there)


async def batch(road: Road, transport: str = "manual", window: int = ITEMS) -> Handle[Any]:
    return await road.engine.start(Batch, {"items": list(range(ITEMS)), "transport": transport, "window": window})


@PARTS
async def test_a_commit_that_asks_is_neither_repeated_nor_dropped(road: Road, part: Part) -> None:
    """Scenario 28: a worker that does not know whether its park has landed finds out, and inserts no second
    interaction."""
    expense = await road.engine.start(Expense)
    loss = road.lose(part, "await_units/open")

    async with road.engine.worker() as worker:
        [question] = await road.out()
        await road.engine.complete(interaction=question, reply=YES)
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["approved"], await road.questions()) == (True, [(question, "completed")])


@PARTS
@pytest.mark.parametrize("name", ["await_units/append", "await_units/settle"], ids=["a chunk", "the park"])
async def test_a_commit_that_asks_about_each_is_neither_repeated_nor_dropped(road: Road, name: str, part: Part) -> None:
    """Scenarios 28, 48: a chunk that has landed is not inserted again, and the instance parks once after the last
    one."""
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
@pytest.mark.parametrize("name", ["interactions/claim", "interactions/add_token_hashes", "interactions/record"])
async def test_an_interaction_is_sent_once_if_a_call_of_its_dispatch_is_lost(
    road: Road, name: str, part: Part
) -> None:
    """Scenario 82: interactions taken by a lost reply are released and sent; a dispatch that was made is recorded
    again."""
    expense = await road.engine.start(Expense, {"transport": "there", "token": True})
    losses: list[Mishap] = []
    road.there.at_open = ordered = asyncio.Event()  # no check before: it would find nothing, or take it

    def order(_: object) -> None:
        if not losses:
            losses.append(road.lose(part, name, with_commit=False))
            ordered.set()

    with armed("committer.committed", fault=order):
        async with road.engine.worker() as worker:
            [question] = await road.out()
            [sent] = road.there.sent
            await road.engine.complete(token=sent.token, reply=YES)
            result = await road.assert_ran_once(expense, worker, losses[0])

    taken_twice = name == "interactions/add_token_hashes" or (name, part) == ("interactions/claim", "answer")
    assert (sent.interaction_id, sent.attempt) == (question, 1 + taken_twice)
    assert (result["approved"], len(road.there.sent)) == (True, 1)
    assert await road.questions() == [(question, "completed")]


@PARTS
async def test_a_completion_lost_on_the_fast_path_is_retried(road: Road, part: Part) -> None:
    """Scenario 18: one simple interaction, one simple completion. A repeated call learns what became of the first."""
    expense = await road.engine.start(Expense)
    async with road.engine.worker() as worker:
        [question] = await road.out()
        loss = road.lose(part, "interactions/complete_fast", with_commit=False)

        with pytest.raises(DatabaseUnavailable):
            await road.engine.complete(interaction=question, reply=YES, actor="ana")
        again = await road.engine.complete(interaction=question, reply=YES, actor="ana")
        result = await road.assert_ran_once(expense, worker, loss)

    assert again.is_duplicate is (part == "answer")
    assert (result["approved"], result["actor"], await road.questions()) == (True, "ana", [(question, "completed")])


@PARTS
@pytest.mark.parametrize(
    ("name", "number", "window"),
    [("complete_fast", 1, ITEMS), ("complete_fast", ITEMS, ITEMS), ("complete_and_settle", 1, ITEMS - 1),
     ("complete", 2, ITEMS - 1)],
    ids=["alone", "together", "alone, with more to ask", "together, with more to ask"],
)
async def test_lost_completions_of_items_are_retried(
    road: Road, name: str, number: int, window: int, part: Part
) -> None:
    """Scenarios 18, 35: each is counted once, on the fast path and on the full one."""
    run = await batch(road, window=window)
    async with road.engine.worker() as worker:
        await road.out(window)
        questions = [id_ for id_, _ in await road.questions()]
        loss = road.lose(part, f"interactions/{name}", with_commit=name == "complete")

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
    """Scenario 70: the interaction ends, and its instance continues, even if the reply of the database is lost."""
    expense = await road.engine.start(Expense, {"seconds": 0.05})
    loss = road.lose(part, "interactions/expire")

    async with road.engine.worker() as worker:
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["status"], [status for _, status in await road.questions()]) == ("timed_out", ["timed_out"])


@PARTS
async def test_an_unsendable_interaction_ends_once_if_its_end_is_lost(road: Road, part: Part) -> None:
    road.there.acts = [Undeliverable("nobody there")]
    expense = await road.engine.start(Expense, {"transport": "there"})
    loss = road.lose(part, "interactions/fail")

    async with road.engine.worker() as worker:
        result = await road.assert_ran_once(expense, worker, loss)

    assert (result["status"], [status for _, status in await road.questions()]) == ("failed", ["failed"])
    assert len(road.there.sent) == 1
