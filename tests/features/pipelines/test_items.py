"""Continuations: one instance per reply, up to the next step over all, which gets them in item order.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from stepwell import Engine, InvalidInput
from stepwell.config import Settings
from stepwell.testing import Harness, armed
from tests.features.pipelines.examples import Numbers
from tests.features.pipelines.streams import (
    FAILS,
    MINUTE,
    NONE,
    TWICE,
    answer,
    answer_all,
    begun,
    interaction_statuses,
    item_id,
    items,
    narrow,
    open_items,
    scored,
    scores,
    seen,
    sent,
    timed,
    unit,
    wakes,
)
from tests.support.transports import Recording
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
ITEM = f"item_0.{scores.shape}"


async def test_a_reply_continues_to_the_step_over_all_while_others_are_awaited(h: Harness) -> None:
    """Scenarios 30, 32, 36: one unit, an index per item, the source read once; the parent stays parked."""
    run = await begun(h, scores, 3)
    assert (await interaction_statuses(h, run), seen.counted) == (["dispatched"] * 3, 1)

    await answer(h, run, 1)
    await h.drain()

    assert (await run.get()).status == "awaiting_external"
    assert (await items(h, run), seen.items, seen.ends) == ({1: "done"}, {1: 1}, [])
    [done] = await h.sql("select result from stepwell.instance_data where id = $1", await item_id(h, run, 1))
    assert done["result"] == '[{"number": 1, "points": 1}]'
    assert await unit(h, run) == ("waiting", 3, 1, 0)


async def test_the_parent_continues_once_with_all_outputs_in_item_order(h: Harness) -> None:
    """Scenarios 31, 37: completed in the order 2, 0, 1; released once, and its unit is closed."""
    run = await begun(h, scores, 3)

    await answer(h, run, 2, 0, 1)
    await h.drain()

    assert (await run.get()).result == [[0], [1], [2]]
    assert seen.ends == [[0, 1, 2]]
    [row] = await h.sql("select await_unit_id, visit from stepwell.instances where id = $1", run.id)
    assert tuple(row) == (None, 1)
    assert await unit(h, run) == ("completed", 3, 3, 0)


async def test_an_item_gives_no_or_several_outputs_and_all_keep_item_order(h: Harness) -> None:
    """Scenario 38."""
    run = await begun(h, scores, 5)

    await answer(h, run, 4, 0)
    await answer(h, run, 3, points=NONE)
    await answer(h, run, 1, points=TWICE)
    await answer(h, run, 2, points=TWICE)
    await h.drain()

    assert seen.ends == [[0, 1, 1, 2, 2, 4]]


async def test_more_items_than_a_page_come_in_their_order(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 31, over the pages in which outputs are read."""
    monkeypatch.setattr("stepwell.pipelines.pipeline.PAGE", 4)
    run = await begun(h, scores, 11)

    await answer_all(h, run, random.Random(7))  # noqa: S311 - an order, not a secret

    assert seen.ends == [list(range(11))]


async def test_a_repeated_completion_continues_once(h: Harness) -> None:
    """Scenario 35."""
    run = await begun(h, scores, 2)
    first = (await open_items(h, run))[0]

    again = [await h.engine.complete(interaction=first, reply={"number": 0, "points": 1}) for _ in range(3)]
    await h.drain()

    assert [one.is_duplicate for one in again] == [False, True, True]
    assert (await unit(h, run), await items(h, run), seen.items) == (("waiting", 2, 1, 0), {0: "done"}, {0: 1})


async def test_a_window_opens_at_a_reply_not_at_the_end_of_the_item(h: Harness) -> None:
    """Scenarios 46, 47: at most two unresolved, in the order of the source."""
    run = await begun(h, narrow, 5)
    assert list(await open_items(h, run)) == [0, 1]

    await answer(h, run, 1)

    assert list(await open_items(h, run)) == [0, 2]
    assert await unit(h, run) == ("waiting", 5, 1, 1)
    await answer_all(h, run)
    assert seen.ends == [[0, 1, 2, 3, 4]]


async def test_a_window_holds_for_each_run_separately(h: Harness) -> None:
    """Nothing bounds the open interactions of all runs: the guide says so."""
    runs = [await begun(h, narrow, 5) for _ in range(3)]

    assert [list(await open_items(h, run)) for run in runs] == [[0, 1]] * 3


async def test_an_await_step_over_a_transport_sends_once_per_item(h: Harness, there: Recording) -> None:
    """Scenarios 30, 46."""
    there._reply = lambda dispatch: {"number": dispatch.request["number"], "points": 1}
    run = await begun(h, sent, 4)

    async with h.engine.worker():
        await run.wait(timeout=30)

    assert sorted(dispatch.request["number"] for dispatch in there.sent) == [0, 1, 2, 3]
    assert seen.ends == [[0, 1, 2, 3]]


async def test_items_are_not_children_of_their_parent(h: Harness) -> None:
    """Joined on the unit: neither counted nor listed as children; they name their parent and item."""
    run = await begun(h, scores, 2)
    await answer(h, run, 1)

    parent, item = await run.get(), await h.engine.get(await item_id(h, run, 1))

    assert (parent.children_pending, parent.items_pending, parent.answers_pending) == (0, 1, 1)
    assert parent.waiting_for == "a reply over 'manual' and 1 item"
    assert (item.parent_id, item.item, item.step, item.state["value"]["number"]) == (run.id, 1, ITEM, 1)
    [row] = await h.sql("select parent_round from stepwell.instances where id = $1", item.id)
    assert row["parent_round"] is None
    family = await h.engine.insights.tree(run.id)
    assert [(one.item, depth) for one, depth in family] == [(None, 0), (1, 1)]


async def test_a_parent_with_all_replies_waits_for_its_items(h: Harness) -> None:
    run = await begun(h, scores, 2)
    await answer(h, run, 0, 1)

    assert (await run.get()).waiting_for == "2 items"
    assert await unit(h, run) == ("waiting", 2, 2, 2)


async def test_an_item_that_fails_for_good_fails_its_parent_and_ends_its_siblings(h: Harness) -> None:
    """Scenario 76, and what the design says: ItemFailed; open interactions are closed, running items cancelled."""
    run = await begun(h, scores, 4)
    await answer(h, run, 0)
    await h.drain()
    await answer(h, run, 2, points=FAILS)
    await answer(h, run, 1)
    await h.sql("update stepwell.instances set priority = 5 where parent_id = $1 and child_index = 1", run.id)

    await h.drain()

    ended = await run.get()
    assert (ended.status, ended.error and ended.error.type) == ("failed", "ItemFailed")
    assert f"see `stepwell tree {run.id}`" in str(ended.error)
    assert await items(h, run) == {0: "done", 1: "cancelled", 2: "failed"}
    assert await interaction_statuses(h, run) == ["completed", "completed", "completed", "cancelled"]
    assert (await unit(h, run), seen.items[1], seen.ends) == (("failed", 4, 3, 0), 0, [])


async def test_an_item_is_tried_three_times_before_it_fails_its_parent(h: Harness) -> None:
    """Scenario 43."""
    seen.failing.add(1)
    run = await begun(h, scores, 2)
    await answer(h, run, 1)

    await h.drain(with_scheduled=True)

    assert seen.items == {1: 3}
    assert (await run.get()).error.type == "ItemFailed"  # type: ignore[union-attr]
    item = await h.engine.get(await item_id(h, run, 1))
    assert (item.status, item.error and item.error.message) == ("failed", "item 1 does not work")


async def test_an_item_that_succeeds_at_its_second_attempt_counts_as_any_other(h: Harness) -> None:
    """Scenario 43, in the other order."""
    seen.failing.add(0)
    run = await begun(h, scores, 2)
    await answer(h, run, 0, 1)
    await h.drain()
    seen.failing.clear()

    await h.drain(with_scheduled=True)

    assert (seen.items, seen.ends) == ({0: 2, 1: 1}, [[0, 1]])


async def test_a_retried_parent_retries_failed_items_and_asks_closed_ones_again(h: Harness) -> None:
    """Scenario 48, for an operator's retry: completed items are not asked again, and ended ones do not run again."""
    run = await begun(h, scores, 4)
    await answer(h, run, 0)
    await h.drain()
    seen.failing.add(1)
    await answer(h, run, 1, 2)
    await h.drain(with_scheduled=True)
    assert (await run.get()).status == "failed"
    seen.failing.clear()

    assert await h.engine.retry(run.id)
    await h.drain()
    assert (await run.get()).waiting_for == "a reply over 'manual'"
    await answer_all(h, run)

    assert (await run.get()).result == [[0], [1], [2], [3]]
    assert seen.items == {0: 1, 1: 4, 2: 1, 3: 1}
    assert (seen.counted, await interaction_statuses(h, run)) == (1, ["completed"] * 4)


async def test_a_retried_parent_with_all_replies_waits_for_its_items_only(h: Harness) -> None:
    run = await begun(h, scores, 2)
    await answer(h, run, 0, 1)
    await h.engine.cancel(run.id)
    assert (await unit(h, run), await items(h, run)) == (("cancelled", 2, 2, 0), {0: "cancelled", 1: "cancelled"})

    assert await h.engine.retry(run.id)
    assert (await run.get()).waiting_for == "2 items"
    await h.drain()

    assert (await run.get()).result == [[0], [1]]


async def test_a_parent_retried_at_its_step_over_all_reads_the_same_items(h: Harness) -> None:
    """Scenarios 24, 55: nothing is asked again; the whole list is replayed."""
    seen.failing.add(-1)
    run = await begun(h, scores, 3)
    await answer(h, run, 0, 1, 2)
    await h.drain(with_scheduled=True)
    assert ((await run.get()).status, seen.ends) == ("failed", [[0, 1, 2]] * 3)
    seen.failing.clear()

    await h.engine.retry(run.id)
    await h.drain()

    assert ((await run.get()).status, seen.ends) == ("done", [[0, 1, 2]] * 4)
    assert (seen.items, seen.counted) == ({0: 1, 1: 1, 2: 1}, 1)


@pytest.mark.parametrize("way", ["python", "python alone", "sql"])
async def test_a_cancelled_parent_cancels_its_items(h: Harness, way: str) -> None:
    """Scenario 76; also without cascade: they are a part of it, not its children."""
    run = await begun(h, scores, 3)
    await answer(h, run, 0, 1)

    if way == "sql":
        await h.sql("select stepwell.cancel(id => $1, cascade => false)", run.id)
    else:
        await h.engine.cancel(run.id, cascade=way == "python")

    assert await items(h, run) == {0: "cancelled", 1: "cancelled"}
    assert (await unit(h, run), await interaction_statuses(h, run)) == (
        ("cancelled", 3, 2, 0),
        ["completed"] * 2 + ["cancelled"],
    )
    await h.drain()
    assert (seen.items, (await run.get()).status) == ({}, "cancelled")

    await h.engine.retry(run.id)
    await answer_all(h, run)
    assert (await run.get()).result == [[0], [1], [2]]


@pytest.mark.parametrize("way", ["python", "sql"])
async def test_a_cancelled_item_fails_its_parent(h: Harness, way: str) -> None:
    run = await begun(h, scores, 3)
    await answer(h, run, 0, 1)

    if way == "sql":
        await h.sql("select stepwell.cancel(id => $1)", await item_id(h, run, 0))
    else:
        await h.engine.cancel(await item_id(h, run, 0))
    await h.drain()

    assert (await run.get()).error.type == "ItemFailed"  # type: ignore[union-attr]
    assert await items(h, run) == {0: "cancelled", 1: "cancelled"}
    assert (await unit(h, run), await interaction_statuses(h, run)) == (
        ("failed", 3, 2, 0),
        ["completed"] * 2 + ["cancelled"],
    )


@pytest.mark.parametrize("act", ["retry", "restart"])
async def test_an_item_of_an_ended_run_is_not_retried_or_restarted_alone(h: Harness, act: str) -> None:
    """It would count nowhere; the refusal says what to do instead."""
    run = await begun(h, scores, 1)
    await answer(h, run, 0, points=FAILS)
    await h.drain()
    item = await item_id(h, run, 0)

    with pytest.raises(InvalidInput, match=rf"is an item of instance {run.id}, .* retry {run.id}") as refused:
        await (h.engine.retry(item) if act == "retry" else h.engine.restart(item, step="item_0"))

    assert refused.value.field == "target"
    assert await items(h, run) == {0: "failed"}


async def test_an_item_restarted_while_others_are_awaited_is_awaited_again(h: Harness) -> None:
    run = await begun(h, scores, 2)
    await answer(h, run, 0)
    await h.drain()

    await h.engine.restart(await item_id(h, run, 0), step="item_0")
    assert await unit(h, run) == ("waiting", 2, 1, 1)
    await h.sql("update stepwell.instances set priority = 1 where parent_id = $1", run.id)
    await answer(h, run, 1)
    await h.drain()

    assert (seen.ends, seen.items) == ([[0, 1]], {0: 2, 1: 1})


async def test_a_restarted_parent_asks_again_and_ends_its_running_items(h: Harness) -> None:
    run = await begun(h, scores, 2)
    await answer(h, run, 0)

    await h.engine.restart(run.id, step="segment_0")
    await h.drain()

    assert (seen.items, await items(h, run)) == ({}, {})
    assert [row["status"] for row in await h.sql("select status from stepwell.await_units order by id")] == [
        "cancelled", "waiting",
    ]  # fmt: skip
    await answer_all(h, run)
    assert (seen.ends, seen.items) == ([[0, 1]], {0: 1, 1: 1})


async def test_a_restart_after_an_await_step_is_refused_as_items_would_be_missing(
    h: Harness,
) -> None:
    run, done = await begun(h, scores, 2), await begun(h, scores, 1)
    await answer(h, run, 0)
    await answer(h, done, 0)
    await h.drain()

    for handle in (run, done):
        with pytest.raises(InvalidInput, match="is restarted at 'segment_0'"):
            await h.engine.restart(handle.id, step="segment_1")
    with pytest.raises(InvalidInput, match=f"an item of a pipeline is restarted at its own step, '{ITEM}'"):
        await h.engine.restart(await item_id(h, run, 0), step="segment_0")
    await answer_all(h, run)

    assert (seen.ends, (await done.get()).result) == ([[0], [0, 1]], [[0]])


async def test_an_interaction_timeout_fails_the_parent_and_ends_its_items(h: Harness) -> None:
    """Scenarios 70, 76: AwaitTimeout, which names the await step."""
    run = await begun(h, timed, 3)
    late = (await open_items(h, run))[1]
    await answer(h, run, 0, 2)
    await h.sql("update stepwell.instances set due_at = due_at + interval '1 hour', hold = 'due' where parent_id = $1",
                run.id)  # fmt: skip

    await h.advance(MINUTE)
    await h.drain()

    error = (await run.get()).error
    assert error is not None
    assert (error.type, late in error.message) == ("AwaitTimeout", True)
    assert await items(h, run) == {0: "cancelled", 2: "cancelled"}
    assert await unit(h, run) == ("timed_out", 3, 3, 0)
    await h.engine.retry(run.id)
    await answer_all(h, run)
    await h.drain(with_scheduled=True)
    assert seen.ends == [[0, 1, 2]]


async def test_a_pipeline_that_wakes_continues_without_the_missing_replies(h: Harness) -> None:
    """Scenario 70, if the await step says so; the last item ends after the timeout."""
    run = await begun(h, wakes, 3)
    await answer(h, run, 0, 2)
    await h.sql("update stepwell.instances set due_at = due_at + interval '5 minutes', hold = 'due' "
                "where parent_id = $1 and child_index = 2", run.id)  # fmt: skip

    await h.advance(MINUTE)
    await h.drain()
    assert (await unit(h, run), (await run.get()).waiting_for) == (("waiting", 3, 3, 1), "1 item")
    await h.drain(with_scheduled=True)

    assert seen.ends == [[0, 2]]


async def test_an_undeliverable_interaction_fails_the_pipeline_and_says_why(h: Harness, there: Recording) -> None:
    from stepwell.errors import Undeliverable  # noqa: PLC0415 - only here

    there.acts = [None, Undeliverable("no such topic"), None]
    run = await begun(h, sent, 3)

    async with h.engine.worker():
        ended = await run.wait(timeout=30)

    assert (ended.status, ended.error and ended.error.type) == ("failed", "ItemFailed")
    assert "no such topic" in str(ended.error)
    assert (await interaction_statuses(h, run), seen.ends) == (["cancelled", "failed", "cancelled"], [])


async def test_a_pipeline_without_items_asks_nothing_and_continues(h: Harness) -> None:
    """Scenario 44."""
    run = await begun(h, scores, 0)

    assert ((await run.get()).result, seen.ends, await interaction_statuses(h, run)) == ([], [[]], [])


async def test_an_output_of_an_item_is_kept_as_long_as_its_parent(h: Harness) -> None:
    """Scenario 75: also when the parent has failed, since it may be retried."""
    seen.failing.add(-1)
    run = await begun(h, scores, 2)
    await answer(h, run, 0, 1)
    await h.sql("update stepwell.instances set priority = 1 where id = $1", run.id)
    await h.drain()
    old = "update stepwell.instances set finished_at = now() - interval '2 hours' where "
    await h.sql(old + "parent_id = $1", run.id)
    await prune(h)
    assert await items(h, run) == {0: "done", 1: "done"}
    await h.drain(with_scheduled=True)
    await prune(h)
    assert ((await run.get()).status, await items(h, run)) == ("failed", {0: "done", 1: "done"})
    seen.failing.clear()

    await h.engine.retry(run.id)
    await h.drain()

    assert (await run.get()).result == [[0], [1]]
    await h.sql(old + "id = $1", run.id)
    await prune(h)
    await prune(h)
    assert await h.sql("select from stepwell.instances") == []


async def prune(h: Harness) -> None:
    from stepwell._store import retention  # noqa: PLC0415 - only here
    from stepwell._store.connection.pool import WORKER, Database  # noqa: PLC0415 - only here

    await h.sql("update stepwell.machines set retention = interval '1 hour'")  # a worker writes down what is declared
    async with Database(h.url, session=WORKER) as database:
        await retention.prune(database)


async def test_a_failed_item_stops_a_pipeline_that_still_asks(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its retry asks about all of them, not about those that were asked before."""
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", 2)
    run = await h.engine.start(scores, Numbers(6))

    with armed("ask_each.appended", hold=True) as point:
        async with h.engine.worker():
            await point.reached()
            await answer(h, run, 0, points=FAILS)
            await eventually(lambda: h.sql("select from stepwell.await_units where status = 'failed'"))
            point.release()
            ended = await run.wait(timeout=30)

    assert (ended.error and ended.error.type, ended.step) == ("ItemFailed", "segment_0")
    assert await interaction_statuses(h, run) == ["completed", "cancelled"]
    await h.engine.retry(run.id)
    await h.drain()
    await answer_all(h, run)
    assert seen.ends == [[0, 1, 2, 3, 4, 5]]


async def test_an_item_waits_for_a_worker_that_has_registered_its_pipeline(h: Harness) -> None:
    """Its version is that of its parent; the others continue, and nothing is lost."""
    newer = scored("scores", version=2)
    run = await begun(h, scores, 2)
    await answer(h, run, 0, 1)

    async with Engine(h.url, machines=[newer]) as engine, engine.worker():
        held = "select from stepwell.instances where hold = 'version' and parent_id = $1"
        await eventually(lambda: _number(h, held, run.id, 2))
        assert (await run.get()).waiting_for == "2 items"
    assert seen.items == {}
    await h.drain()

    assert (await run.get()).result == [[0], [1]]


async def _number(h: Harness, query: str, id_: int, number: int) -> bool:
    return len(await h.sql(query, id_)) == number


async def test_an_item_that_kills_its_worker_too_often_fails_its_parent(h: Harness) -> None:
    """The crash loop of an item ends it and its parent, not the workers."""
    run = await begun(h, scores, 2)
    await answer(h, run, 0)
    item = await item_id(h, run, 0)
    await h.sql("update stepwell.instances set crashes = $1 where id = $2", Settings().max_crashes - 1, item)

    h.crash("executor.returned", step=ITEM)
    await h.drain()
    ended = await run.get()

    assert ended.error is not None
    assert ended.error.type == "ItemFailed"
    assert (await h.engine.get(item)).error.type == "CrashLoop"  # type: ignore[union-attr]
    assert await interaction_statuses(h, run) == ["completed", "cancelled"]


async def test_a_source_that_fails_after_some_items_ends_those_items_too(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", 2)
    seen.breaks_at = 2
    run = await h.engine.start(scores, Numbers(6))
    await h.drain()
    await answer(h, run, 0)
    await h.sql("update stepwell.instances set due_at = due_at + interval '1 day', hold = 'due' where parent_id = $1",
                run.id)  # fmt: skip

    for _ in range(2):
        await h.advance(MINUTE)
        await h.drain()

    failed = await run.get()
    assert (failed.status, failed.error and failed.error.message) == ("failed", "the source is broken")
    assert (await items(h, run), await interaction_statuses(h, run)) == ({0: "cancelled"}, ["completed", "cancelled"])
    assert await unit(h, run) == ("cancelled", 2, 1, 0)


async def test_items_have_tenant_priority_and_fairness_key_of_their_parent(h: Harness) -> None:
    """Tenant, priority, and in a fair queue the share."""
    async with h.another_engine(fair_by={"default": "tenant"}) as engine, engine.worker():
        run = await engine.start(scores, Numbers(2), tenant="acme", priority=3)
        await run.wait(until="settled", timeout=30)
        for item, id_ in (await open_items(h, run)).items():
            await engine.complete(interaction=id_, reply={"number": item, "points": 1}, tenant="acme")
        await run.wait(timeout=30)

    rows = await h.sql("select distinct tenant, priority, queue, share is not null, share from stepwell.instances")
    assert [tuple(row)[:4] for row in rows] == [("acme", 3, "default", True)]
    assert seen.ends == [[0, 1]]
    await h.sql("delete from stepwell.queues")


async def test_an_item_that_runs_while_a_sibling_fails_is_stopped_at_once(h: Harness) -> None:
    """By a notification, also at another worker (its next heartbeat is far away): nothing would use its outcome."""
    seen.hanging.add(0)
    run = await begun(h, scores, 2)
    await answer(h, run, 0)

    async with h.another_engine(max_poll=HOUR, heartbeat=HOUR, lease=10 * HOUR) as engine, engine.worker():
        await eventually(lambda: seen.items[0])
        await answer(h, run, 1, points=FAILS)
        async with h.engine.worker({"default": 1}):
            ended = await run.wait(timeout=30)
            await eventually(lambda: seen.stopped == [0])

    assert ended.error is not None
    assert ended.error.type == "ItemFailed"
    assert await items(h, run) == {0: "cancelled", 1: "failed"}
