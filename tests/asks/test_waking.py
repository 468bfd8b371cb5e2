"""Workers that hardly poll hear at once what an answer lets go on: instances, the next items, their deadlines."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.asks.askers import Recorder
from tests.asks.looks import DOORS, Refused, asked, pending, questions, snapshot
from tests.asks.machines import Batch, Expense
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

RARELY = {"poll": timedelta(minutes=10), "max_poll": timedelta(minutes=10)}
COMPLETE = "select * from stepwell.complete(reply => $1, interaction => $2)"
YES = json.dumps({"approved": True})


@pytest.mark.parametrize("way", DOORS)
async def test_an_answer_wakes_who_waits_for_it(make_harness: MakeHarness, way: str) -> None:
    """Scenario 14: from another process, without anybody polling: the step goes on when the answer is committed."""
    h = await make_harness([Expense, Batch], transports=[recorder := Recorder()])
    items = {"items": [0, 1], "window": 1, "transport": "recorder"}
    expense = await h.engine.start(Expense)
    async with h.another_engine(transports=[recorder]) as elsewhere, elsewhere.worker(**RARELY):
        [question] = await eventually(lambda: pending(h))
        await DOORS[way](h).complete(interaction=question.id, reply={"approved": True})
        assert (await expense.result(20))["status"] == "completed"

        batch = await h.engine.start(Batch, items)
        for place in (0, 1):
            await eventually(lambda n=place: len(recorder.sent) > n)
            await DOORS[way](h).complete(interaction=recorder.sent[place].interaction_id, reply=place)
        assert await batch.result(20) == [[0, "completed", 0], [1, "completed", 1]]


@pytest.mark.parametrize("way", DOORS)
async def test_the_deadline_of_what_an_answer_lets_out_is_kept(make_harness: MakeHarness, way: str) -> None:
    """Scenarios 46, 70: the second item's time begins with the first one's answer; nobody polls for its end."""
    h = await make_harness([Batch])
    batch = await h.engine.start(Batch, {"items": [0, 1], "window": 1, "seconds": 2})
    async with h.another_engine() as elsewhere, elsewhere.worker(**RARELY):
        [question] = await eventually(lambda: pending(h))
        with suppress(Refused):  # on a machine so slow that two seconds are over by now
            await DOORS[way](h).complete(interaction=question.id, reply=0)

        assert (await batch.result(20))[1] == [1, "timed_out", None]


async def test_an_answer_in_sql_is_part_of_the_callers_transaction(h: Harness) -> None:
    """Section 7: with the caller's own writes, or not at all."""
    expense, question = await asked(h, Expense)
    before = await snapshot(h)
    await h.sql("create table public.mine (note text)")
    connection = await asyncpg.connect(h.url)

    async def answer(note: str) -> Any:
        await connection.execute("insert into public.mine values ($1)", note)
        return await connection.fetchrow(COMPLETE, YES, question.id)

    transaction = connection.transaction()
    await transaction.start()
    first = await answer("rolled back")
    await transaction.rollback()
    assert await snapshot(h) == before
    async with connection.transaction():
        second = await answer("kept")
    await connection.close()

    assert first == second
    assert (str(second["interaction_id"]), second["instance_id"], second["is_duplicate"]) == (
        question.id, expense.id, False,
    )  # fmt: skip
    await h.drain()
    await h.assert_done(expense)
    assert [row["note"] for row in await h.sql("select note from public.mine")] == ["kept"]


async def test_an_answer_in_sql_needs_read_committed(h: Harness) -> None:
    """As every door in SQL: under an older snapshot it could not see who else has answered."""
    expense, question = await asked(h, Expense)
    connection = await asyncpg.connect(h.url)

    with pytest.raises(asyncpg.PostgresError) as caught:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchrow(COMPLETE, YES, question.id)
    await connection.close()

    assert caught.value.sqlstate == "SW005"
    assert [row["status"] for row in await questions(h, expense.id)] == ["dispatched"]
