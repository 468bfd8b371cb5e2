"""Workers close what a large unit has left open, as soon as it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from stepwell import Engine
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch
from tests.support.waiting import eventually

MANY = 2_500
LONG = timedelta(minutes=5)  # between two checks of the reconciler: what is seen earlier was notified
NONE_OPEN = "select not exists (select from stepwell.interactions where finished_at is null) as is_so"


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Batch], reap=LONG)


@pytest.fixture
async def other(h: Harness) -> AsyncIterator[Engine]:
    """The engine of another process, as the database sees it."""
    async with h.another_engine(reap=LONG) as engine:
        yield engine


async def are_all_closed(h: Harness) -> bool:
    [row] = await h.sql(NONE_OPEN)
    return bool(row["is_so"])


async def test_a_worker_is_notified_of_a_large_unit_that_another_process_ended(h: Harness, other: Engine) -> None:
    async with h.engine.worker() as worker:
        batch = await h.engine.start(Batch, {"items": list(range(MANY))})
        await batch.wait(until="settled", timeout=60)

        await other.cancel(batch.id)

        await eventually(lambda: are_all_closed(h))
        assert worker.stats.reconciled == 0


async def test_other_outcomes_commit_while_a_large_unit_is_closed(h: Harness) -> None:
    async with h.engine.worker():
        batch = await h.engine.start(Batch, {"items": list(range(MANY))})
        await batch.wait(until="settled", timeout=60)
        with armed("reconciler.cleaned") as cleaned:
            await h.engine.cancel(batch.id)
            await cleaned.reached()

            small = await h.engine.start(Batch, {"items": []})

            assert (await small.wait(timeout=30)).result == []
        await eventually(lambda: are_all_closed(h))
