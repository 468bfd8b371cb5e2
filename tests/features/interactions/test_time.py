"""Deadlines: which interactions are late, in which order, and what a timeout does not change.

Others: test_scalar, test_each.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from stepwell import InteractionClosed
from stepwell._store import interactions
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker, each_asker
from tests.features.interactions.looks import asked, interaction_rows, pending
from tests.features.interactions.machines import Expense
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)


async def test_late_interactions_are_found_by_deadline_in_every_tenant(make_harness: MakeHarness) -> None:
    """Scenario 70: the longest late first, across tenants; those with time left, or without a deadline, stay."""
    machines = [asker(name=f"M{n}", timeout=n * SECOND) for n in (30, 10, 20, 90)] + [asker(name="For ever")]
    h = await make_harness(machines)
    handles = [await h.engine.start(m, tenant=f"t{place % 2}") for place, m in enumerate(machines)]
    await h.drain()
    await h.advance(40 * SECOND)

    late = await h.sql(statement("interactions/find_overdue"), datetime.min.replace(tzinfo=UTC), str(UUID(int=0)))
    number, held, _ = await interactions.expire(h.engine._database)

    assert [row["instance_id"] for row in late] == [handles[place].id for place in (1, 2, 0)]
    assert (number, held) == (3, 0)
    await h.drain()
    statuses = [(await handle.get()).status for handle in handles]
    assert statuses == ["done", "done", "done", "awaiting_external", "awaiting_external"]


async def test_a_timeout_comes_by_itself_while_a_worker_runs(make_harness: MakeHarness) -> None:
    """Scenario 70: without a sweep: the worker knows the next deadline, also that of an item dispatched later."""
    machine = each_asker(lambda: range(3), window=1, timeout=timedelta(milliseconds=100))
    h = await make_harness([machine])
    each = await h.engine.start(machine)

    async with h.engine.worker():
        result = await each.result(30)

    assert result == [[n, "timed_out", None] for n in range(3)]


async def test_a_timeout_during_the_filling_has_no_effect_on_it(make_harness: MakeHarness) -> None:
    """Scenario 72: the parent is not waiting; the timeout is recorded, and seen when the step continues."""
    machine = each_asker(lambda: range(600), reply=int, window=1_000, timeout=30 * SECOND)
    h = await make_harness([machine])
    each = await h.engine.start(machine)

    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker():
            await appended.reached()
            await h.advance(31 * SECOND)
            await eventually(lambda: h.sql("select from stepwell.interactions where status = 'timed_out' limit 1"))
            running = await each.get()
            appended.release()
            await eventually(lambda: pending(h))
            left = [row for row in await interaction_rows(h, each.id) if row["finished_at"] is None]
            await asyncio.gather(*(h.engine.complete(interaction=str(row["id"]), reply=1) for row in left))
            result = await each.result(30)

    assert running.status == "executing"
    assert [status for _, status, _ in result] == ["timed_out"] * 500 + ["completed"] * 100


async def test_a_timeout_of_a_cancelled_or_restarted_instance_has_no_effect(h: Harness) -> None:
    """Scenario 72: a cancel or restart in between closes the interaction; the deadline finds nothing."""
    state = {"seconds": 60, "on_timeout": "fail"}
    cancelled, _ = await asked(h, Expense, state)
    restarted, _ = await asked(h, Expense, state)
    await h.engine.cancel(cancelled.id)
    await h.engine.restart(restarted.id, step=Expense.start, state={})
    await h.advance(61 * SECOND)

    await h.drain()

    await h.assert_cancelled(cancelled)
    assert (await restarted.get()).status == "awaiting_external"
    assert [row["status"] for row in await interaction_rows(h, restarted.id)] == ["cancelled", "dispatched"]


async def test_a_completion_and_a_concurrent_timeout_have_one_end(h: Harness) -> None:
    """Scenario 71: sweep and completion at the same time: one terminal state, and the step sees that one."""
    handles = [await h.engine.start(Expense, {"seconds": 60}) for _ in range(10)]
    await h.drain()
    found = await pending(h)
    await h.advance(timedelta(seconds=60) - timedelta(milliseconds=30))

    async def complete(id_: str) -> str:
        try:
            await h.engine.complete(interaction=id_, reply={"approved": True})
        except Exception as refusal:  # noqa: BLE001 - looked at below
            return getattr(refusal, "reason", repr(refusal))
        return "admitted"

    async with h.engine.worker():
        said = await asyncio.gather(*(complete(interaction.id) for interaction in found))
        results = [await handle.result(30) for handle in handles]

    by_instance = {interaction.instance_id: word for interaction, word in zip(found, said, strict=True)}
    for handle, result in zip(handles, results, strict=True):
        expected = "completed" if by_instance[handle.id] == "admitted" else "timed_out"
        assert result["status"] == expected
    assert {*said} <= {"admitted", "late", "closed"}


async def test_a_timed_out_interaction_stays_timed_out(h: Harness) -> None:
    """Scenario 71: the first end stays, whatever happens after it."""
    expense, interaction = await asked(h, Expense, {"seconds": 60})
    await h.advance(61 * SECOND)
    await h.drain()
    before = await interaction_rows(h, expense.id)

    with pytest.raises(InteractionClosed) as caught:
        await h.engine.complete(interaction=interaction.id, reply={"approved": True})
    await h.engine.cancel(expense.id)

    assert caught.value.status == "timed_out"
    assert await interaction_rows(h, expense.id) == before
