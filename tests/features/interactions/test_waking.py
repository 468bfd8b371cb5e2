"""Workers that hardly poll are notified at once of what a completion releases: instances, the next items, deadlines."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder
from tests.features.interactions.looks import COMPLETERS, Refused, asked, interaction_rows, pending, snapshot
from tests.features.interactions.machines import Batch, Expense
from tests.support.waiting import eventually

RARELY = {"poll": timedelta(minutes=10), "max_poll": timedelta(minutes=10)}
COMPLETE = "select * from stepwell.complete(reply => $1, interaction => $2)"
YES = json.dumps({"approved": True})


@pytest.mark.parametrize("way", COMPLETERS)
async def test_a_completion_wakes_a_worker_of_another_process_without_a_poll(
    make_harness: MakeHarness, way: str
) -> None:
    """Scenario 14: from another process, without any poll: the step continues when the completion is committed."""
    h = await make_harness([Expense, Batch], transports=[recorder := Recorder()])
    items = {"items": [0, 1], "window": 1, "transport": "recorder"}
    expense = await h.engine.start(Expense)
    async with h.another_engine(transports=[recorder]) as elsewhere, elsewhere.worker(**RARELY):
        [interaction] = await eventually(lambda: pending(h))
        await COMPLETERS[way](h).complete(interaction=interaction.id, reply={"approved": True})
        assert (await expense.result(20))["status"] == "completed"

        batch = await h.engine.start(Batch, items)
        for place in (0, 1):
            await eventually(lambda n=place: len(recorder.sent) > n)
            await COMPLETERS[way](h).complete(interaction=recorder.sent[place].interaction_id, reply=place)
        assert await batch.result(20) == [[0, "completed", 0], [1, "completed", 1]]


@pytest.mark.parametrize("way", COMPLETERS)
async def test_the_deadline_of_an_item_that_a_completion_dispatches_fires(make_harness: MakeHarness, way: str) -> None:
    """Scenarios 46, 70: the second item's time begins with the completion of the first; no poll finds its end."""
    h = await make_harness([Batch])
    batch = await h.engine.start(Batch, {"items": [0, 1], "window": 1, "seconds": 2})
    async with h.another_engine() as elsewhere, elsewhere.worker(**RARELY):
        [interaction] = await eventually(lambda: pending(h))
        with suppress(Refused):  # on a machine so slow that two seconds have passed by now
            await COMPLETERS[way](h).complete(interaction=interaction.id, reply=0)

        assert (await batch.result(20))[1] == [1, "timed_out", None]


async def test_a_completion_in_sql_is_part_of_the_callers_transaction(h: Harness) -> None:
    """Section 7: with the caller's own writes, or not at all."""
    expense, interaction = await asked(h, Expense)
    before = await snapshot(h)
    await h.sql("create table public.mine (note text)")
    connection = await asyncpg.connect(h.url)

    async def complete(note: str) -> Any:
        await connection.execute("insert into public.mine values ($1)", note)
        return await connection.fetchrow(COMPLETE, YES, interaction.id)

    transaction = connection.transaction()
    await transaction.start()
    first = await complete("rolled back")
    await transaction.rollback()
    assert await snapshot(h) == before
    async with connection.transaction():
        second = await complete("kept")
    await connection.close()

    assert first == second
    assert (str(second["interaction_id"]), second["instance_id"], second["is_duplicate"]) == (
        interaction.id, expense.id, False,
    )  # fmt: skip
    await h.drain()
    await h.assert_done(expense)
    assert [row["note"] for row in await h.sql("select note from public.mine")] == ["kept"]


async def test_a_completion_in_sql_needs_read_committed(h: Harness) -> None:
    """As every SQL function: an older snapshot could not see other completions."""
    expense, interaction = await asked(h, Expense)
    connection = await asyncpg.connect(h.url)

    with pytest.raises(asyncpg.PostgresError) as caught:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchrow(COMPLETE, YES, interaction.id)
    await connection.close()

    assert caught.value.sqlstate == "SW005"
    assert [row["status"] for row in await interaction_rows(h, expense.id)] == ["dispatched"]
