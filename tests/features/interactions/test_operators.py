"""Retry, restart, cancel and prune know what an instance asks: nothing is forgotten, nothing stays open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    Ask,
    Context,
    Done,
    InteractionClosed,
    Machine,
    Outcome,
    Spawn,
    UnknownInteraction,
    step,
)
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder, asker
from tests.features.interactions.kinds import Picky
from tests.features.interactions.looks import SqlCompleter, asked, interaction_rows, pending
from tests.features.interactions.machines import Batch, Expense

YES: dict[str, Any] = {"approved": True}
FAILING = {"seconds": 60, "on_timeout": "fail"}
MINUTE = timedelta(seconds=61)


class Retried(Machine):
    """Fails with the reply it received, as often as its state says."""

    @dataclass
    class State:
        fails: int = 1
        seconds: float | None = None
        on_timeout: Any = "wake"

    runs: list[str] = []  # noqa: RUF012 - what this process has seen

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        timeout = None if ctx.state.seconds is None else timedelta(seconds=ctx.state.seconds)
        return Ask("recorder", {"a": 1}, reply=int, then=self.use, timeout=timeout, on_timeout=ctx.state.on_timeout)

    @step
    async def use(self, ctx: Context[State]) -> Outcome:
        self.runs.append(ctx.reply.status)
        if len(self.runs) <= ctx.state.fails:
            raise RuntimeError("not yet")
        return Done(ctx.reply.status)


class Parent(Machine):
    """Has a child that asks."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Spawn([Expense.child({}), Batch.child({"items": [1, 2, 3], "window": 1})], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done([child.status for child in ctx.children])


async def statuses(h: Harness, instance_id: int) -> list[str]:
    return [row["status"] for row in await interaction_rows(h, instance_id)]


async def test_a_retry_after_a_timeout_asks_again(h: Harness) -> None:
    """Scenario 70, Gap 13: the same interaction with a new deadline, open for a completion; the step waits for it."""
    expense, interaction = await asked(h, Expense, FAILING)
    await h.advance(MINUTE)
    await h.drain()
    await h.assert_failed(expense, "was not completed in time")

    assert await h.engine.retry(expense.id)

    assert (await h.drain()).total == 0
    [again] = await pending(h)
    assert (again.id, again.correlation_id) == (interaction.id, interaction.correlation_id)
    assert again.deadline is not None
    assert interaction.deadline is not None
    assert again.deadline > interaction.deadline
    await h.engine.complete(interaction=again.id, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_an_interaction_asked_again_times_out_again(h: Harness) -> None:
    """Gap 13: the new deadline is one: it fails the instance a second time."""
    expense, _ = await asked(h, Expense, FAILING)
    await h.advance(MINUTE)
    await h.drain()
    await h.engine.retry(expense.id)

    await h.advance(MINUTE)
    await h.drain()

    await h.assert_failed(expense, "was not completed in time")
    assert await statuses(h, expense.id) == ["timed_out"]


async def test_a_retry_of_a_cancelled_instance_asks_and_sends_again(make_harness: MakeHarness) -> None:
    """Gap 13: an instance cancelled at its interaction asks again: it is sent once more, under the same ids."""
    recorder = Recorder()
    h = await make_harness([Retried], transports=[recorder])
    handle, _ = await asked(h, Retried)
    await h.engine.cancel(handle.id)
    with pytest.raises(InteractionClosed):
        await h.engine.complete(interaction=recorder.sent[0].interaction_id, reply=1)

    await h.engine.retry(handle.id)
    await h.drain()

    first, second = recorder.sent
    assert (first.interaction_id, first.correlation_id, first.idempotency_key) == (
        second.interaction_id, second.correlation_id, second.idempotency_key,
    )  # fmt: skip
    assert (await handle.get()).status == "awaiting_external"


async def test_a_retry_after_a_reply_or_a_seen_timeout_does_not_ask(make_harness: MakeHarness) -> None:
    """Scenario 24, Gap 13: the step runs again with the same input: a reply, or a timeout that woke it."""
    recorder = Recorder()
    h = await make_harness([Retried], transports=[recorder])
    Retried.runs.clear()
    answered, _ = await asked(h, Retried)
    await h.engine.complete(interaction=recorder.sent[0].interaction_id, reply=1)
    await h.drain()
    await h.assert_failed(answered, "not yet")

    await h.engine.retry(answered.id)
    await h.drain()
    await h.assert_done(answered, "completed")

    Retried.runs.clear()
    late, _ = await asked(h, Retried, {"seconds": 60})
    await h.advance(MINUTE)
    await h.drain()
    await h.assert_failed(late, "not yet")
    await h.engine.retry(late.id)
    await h.drain()
    await h.assert_done(late, "timed_out")
    assert len(recorder.sent) == 2


async def test_a_retry_of_many_items_asks_only_the_open_ones(h: Harness) -> None:
    """Scenario 48, Gap 13: replies stay, the rest is sent again in its window, with new deadlines."""
    batch = await h.engine.start(Batch, {"items": [*range(5)], "window": 2, **FAILING})
    await h.drain()
    await h.engine.complete(interaction=(await pending(h))[1].id, reply=1)
    await h.advance(MINUTE)
    await h.drain()
    await h.assert_failed(batch, "was not completed in time")

    await h.engine.retry(batch.id)

    assert await statuses(h, batch.id) == ["dispatched", "completed", "dispatched", "queued", "queued"]
    for _ in range(4):
        interaction = (await pending(h))[0]
        await h.engine.complete(interaction=interaction.id, reply=interaction.index)
    await h.drain()
    await h.assert_done(batch, [[n, "completed", n] for n in range(5)])


async def test_a_restart_closes_its_interactions_and_may_ask_again(h: Harness, completer: Any) -> None:
    """Scenario 76, Gap 13: at another step, nothing of the old interaction is left; its completion is refused."""
    expense, old = await asked(h, Expense)

    await h.engine.restart(expense.id, step=Expense.start)
    await h.drain()

    [new] = await pending(h)
    assert new.id != old.id
    assert await statuses(h, expense.id) == ["cancelled", "dispatched"]
    with pytest.raises(Exception, match="cancelled"):
        await completer.complete(interaction=old.id, reply=YES)
    await completer.complete(interaction=new.id, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_a_restart_after_a_timeout_or_a_wrong_reply_runs_the_chosen_step(make_harness: MakeHarness) -> None:
    """Gap 13, Gap 10: neither a timeout that failed it nor a reply that no type reads prevents a restart."""
    picky = asker(reply=Picky)
    h = await make_harness([Expense, picky])
    late, _ = await asked(h, Expense, FAILING)
    await h.advance(MINUTE)
    wrong, interaction = await asked(h, picky)
    await SqlCompleter(h).complete(interaction=interaction.id, reply={"number": 3})
    await h.drain()
    await h.assert_failed(late, "was not completed in time")
    await h.assert_failed(wrong, "odd numbers are not allowed")

    await h.engine.restart(late.id, step=Expense.start)
    await h.engine.restart(wrong.id, step="start")
    await h.drain()

    assert {q.instance_id for q in await pending(h)} == {late.id, wrong.id}


async def test_a_restart_at_the_same_step_reads_the_same_reply(make_harness: MakeHarness) -> None:
    """Scenario 24: the reply stays with the step that continues with it."""
    recorder = Recorder()
    h = await make_harness([Retried], transports=[recorder])
    Retried.runs.clear()
    handle, _ = await asked(h, Retried)
    await h.engine.complete(interaction=recorder.sent[0].interaction_id, reply=1)
    await h.drain()

    await h.engine.restart(handle.id, step=Retried.use)
    await h.drain()

    await h.assert_done(handle, "completed")
    assert len(recorder.sent) == 1


@pytest.mark.parametrize("way", ["python", "sql"])
async def test_a_cancel_closes_the_interactions_of_the_whole_tree(make_harness: MakeHarness, way: str) -> None:
    """Scenario 76, Gap 14: children's interactions too, dispatched or queued; completions are refused."""
    h = await make_harness([Parent, Expense, Batch])
    parent = await h.engine.start(Parent)
    await h.drain()
    [first, *_] = await pending(h)

    if way == "python":
        await h.engine.cancel(parent.id)
    else:
        await h.sql("select stepwell.try_cancel(id => $1)", parent.id)

    rows = await h.sql("select distinct status from stepwell.interactions")
    units = await h.sql("select distinct status from stepwell.await_units")
    assert [row["status"] for row in (*rows, *units)] == ["cancelled", "cancelled"]
    assert await pending(h) == []
    with pytest.raises(InteractionClosed) as caught:
        await h.engine.complete(interaction=first.id, reply=YES)
    assert caught.value.status == "cancelled"


async def test_a_cancel_during_the_filling_closes_its_interactions(make_harness: MakeHarness) -> None:
    """Scenario 76, Gap 14: a running step is cancelled between two chunks; it appends nothing more."""
    h = await make_harness([Batch])
    batch = await h.engine.start(Batch, {"items": [*range(600)]})

    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker():
            await appended.reached()
            await h.engine.cancel(batch.id)
            appended.release()

    rows = await interaction_rows(h, batch.id)
    assert {row["status"] for row in rows} == {"cancelled"}
    assert {row["unit_status"] for row in rows} == {"cancelled"}
    await h.engine.retry(batch.id)
    await h.drain()
    again = [row for row in await interaction_rows(h, batch.id) if row["finished_at"] is None]
    assert [row["item"] for row in again] == [*range(600)]


async def test_interactions_are_pruned_with_their_instance(make_harness: MakeHarness) -> None:
    """Scenario 75, Gap 12: an instance waits as long as it must, whatever the retention; ended, all of it goes."""
    h = await make_harness([Expense, Batch], retention=timedelta(days=1))
    waiting, interaction = await asked(h, Expense)
    ended = await h.engine.start(Batch, {"items": [1, 2], "seconds": 1})
    await h.drain()
    await h.advance(timedelta(seconds=2))
    await h.drain()
    await h.assert_done(ended)

    await h.advance(timedelta(days=400))
    with armed("pruner.pruned") as pruned:
        async with h.engine.worker():
            assert (await pruned.reached())["deleted"] == 1

    rows = await h.sql("select q.id::text from stepwell.interactions q join stepwell.await_units u on u.id = q.unit_id")
    assert [row["id"] for row in rows] == [interaction.id]
    await h.engine.complete(interaction=interaction.id, reply=YES)
    await h.drain()
    await h.assert_done(waiting)


async def test_a_pruned_interaction_is_unknown(make_harness: MakeHarness) -> None:
    """Scenario 59: there is nothing left to complete, or to read."""
    h = await make_harness([Expense], retention=timedelta(0))
    _, interaction = await asked(h, Expense)
    await h.engine.complete(interaction=interaction.id, reply=YES)
    await h.drain()
    with armed("pruner.pruned") as pruned:
        async with h.engine.worker():
            await pruned.reached()

    with pytest.raises(UnknownInteraction):
        await h.engine.complete(interaction=interaction.id, reply=YES)
    with pytest.raises(UnknownInteraction):
        await h.engine.interactions.get(interaction.id)


async def test_the_reconciler_finds_no_damage_and_repairs_made_damage(h: Harness) -> None:
    """Scenario 18, Gaps 8 and 18: as if a crash came between completion and release, which are one commit."""
    expense, interaction = await asked(h, Expense)
    batch = await h.engine.start(Batch, {"items": [1]})
    await h.drain()
    with armed("reconciler.looked") as looked:
        async with h.engine.worker():
            assert (await looked.reached())["repaired"] == 0
    done = "status = 'completed', finished_at = now()"
    await h.sql(
        f"update stepwell.interactions set {done}, reply = '{{\"approved\": true}}' where id = $1", interaction.id
    )
    await h.sql(f"update stepwell.await_units set {done} where id = $1", interaction.unit_id)
    await h.sql(f"update stepwell.interactions set {done}, reply = '7' where instance_id = $1", batch.id)

    with armed("reconciler.looked") as looked:
        async with h.engine.worker():
            assert (await looked.reached())["repaired"] == 2
            results = [await expense.result(30), await batch.result(30)]

    assert results[0]["status"] == "completed"
    assert results[1] == [[0, "completed", 7]]
