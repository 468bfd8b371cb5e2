"""Damage to continuations, made on purpose: found, repaired, counted."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell import Handle
from stepwell._store import await_units
from stepwell._store.await_units import Repaired
from stepwell._store.connection.pool import WORKER, Database
from stepwell.testing import Harness, armed
from tests.features.pipelines.streams import answer, begun, item_id, items, scores, seen, unit


async def looked(h: Harness) -> Repaired:
    """What one check of everything finds and repairs."""
    async with Database(h.url, session=WORKER) as database:
        return await await_units.reconcile(database, await_units.ReconcilePlace())


def number(repaired: Repaired) -> int:
    return sum(map(len, (repaired.released, repaired.closed, repaired.recounted, repaired.started)))


async def through(h: Harness, number: int = 2) -> Handle[Any]:
    """A pipeline with all replies, of which all but the last have been processed."""
    run = await begun(h, scores, number)
    await answer(h, run, *range(number - 1))
    await h.drain()
    await answer(h, run, number - 1)
    return run


async def test_running_items_are_no_damage(h: Harness) -> None:
    """All is completed, and the unit is not complete: as it should be."""
    run = await through(h)

    assert number(await looked(h)) == 0

    assert await unit(h, run) == ("waiting", 2, 2, 1)


async def test_a_reply_without_its_continuation_is_found_and_continued(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Item completed without a continuation; the worker logs it at level error, and counts it."""
    run = await through(h)
    lost = await item_id(h, run, 1)
    await h.sql("delete from stepwell.instances where id = $1", lost)
    await h.sql("delete from stepwell.instance_data where id = $1", lost)
    unit_id = (await h.sql("select id from stepwell.await_units"))[0]["id"]

    with caplog.at_level(logging.ERROR, "stepwell"), armed("reconciler.looked") as point:
        async with h.engine.worker() as worker:
            await point.reached()
            ended = await run.wait(timeout=30)

    assert (ended.result, seen.items) == ([[0], [1]], {0: 1, 1: 1})
    assert worker.stats.reconciled == 1
    assert f"units [{unit_id}] had replies without a continuation" in caplog.text


async def test_an_end_that_was_not_counted_is_counted(h: Harness) -> None:
    """All items are done, the unit counts one as running."""
    run = await through(h)
    await h.sql("update stepwell.instances set status = 'done', finished_at = now() where parent_id = $1", run.id)
    await h.sql("update stepwell.instance_data set result = '[]' where id = $1", await item_id(h, run, 1))

    repaired = await looked(h)

    assert (number(repaired), len(repaired.recounted)) == (1, 1)
    await h.drain()
    assert ((await run.get()).result, await unit(h, run)) == ([[0]], ("completed", 2, 2, 0))


async def test_a_failure_that_was_not_counted_fails_the_pipeline(h: Harness) -> None:
    """It is not taken for complete."""
    run = await through(h)
    await h.sql("update stepwell.instances set status = 'failed', finished_at = now() where id = $1",
                await item_id(h, run, 1))  # fmt: skip

    assert number(await looked(h)) == 1

    await h.drain()
    assert (await run.get()).error.type == "ItemFailed"  # type: ignore[union-attr]
    assert (await unit(h, run), await items(h, run)) == (("failed", 2, 2, 0), {0: "done", 1: "failed"})


async def test_a_complete_unit_with_a_parked_parent_wakes_it(h: Harness) -> None:
    run = await through(h)
    await h.drain()
    await h.sql("update stepwell.instances set status = 'awaiting_external', finished_at = null, await_unit_id = "
                "(select id from stepwell.await_units) where id = $1", run.id)  # fmt: skip

    repaired = await looked(h)

    assert (list(repaired.released), number(repaired)) == ([run.id], 1)
    await h.drain()
    assert seen.ends == [[0, 1], [0, 1]]


async def test_a_unit_without_a_waiting_parent_is_closed_with_its_items(h: Harness) -> None:
    run = await through(h)
    await h.sql("update stepwell.instances set await_unit_id = null, status = 'failed', finished_at = now() "
                "where id = $1", run.id)  # fmt: skip

    repaired = await looked(h)

    assert (len(repaired.closed), number(repaired)) == (1, 1)
    assert (await unit(h, run), await items(h, run)) == (("cancelled", 2, 2, 0), {0: "done", 1: "cancelled"})
