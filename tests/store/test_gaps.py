"""The probe between the statements of a transaction: what it reports, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._process import probes
from tests.conftest import MakeHarness


class Transfer(Machine, initial="pay"):
    """Writes in the transaction of its own outcome."""

    @step(transactional=True)
    async def pay(self, ctx: Context[Any]) -> Done:
        await ctx.connection.execute("select 1")
        return Done()


@pytest.fixture
def gaps() -> Iterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    probes.hooks[probes.GAP] = seen.append
    yield seen
    del probes.hooks[probes.GAP]


async def test_every_gap_of_a_transaction_is_reported_in_order(
    make_harness: MakeHarness, gaps: list[dict[str, Any]]
) -> None:
    h = await make_harness([Transfer])
    await h.engine.queues.pause("default")
    gaps.clear()

    await h.engine.queues.resume("default")

    assert [(gap["number"], gap["after"], gap["before"]) for gap in gaps] == [
        (0, "begin", "queues/resume"),
        (1, "queues/resume", "limits/recheck_rates_of_queue"),
        (2, "limits/recheck_rates_of_queue", "commit"),
        (3, "commit", None),
    ]
    assert {gap["transaction"] for gap in gaps} == {"stepwell._store.registrations.queues.resume"}


async def test_the_transaction_of_a_step_reports_its_gaps(
    make_harness: MakeHarness, gaps: list[dict[str, Any]]
) -> None:
    h = await make_harness([Transfer])
    await h.engine.start(Transfer)

    await h.drain()

    found = [gap for gap in gaps if gap["transaction"] == "stepwell._store.step_transaction.transaction.Transaction"]
    assert [(gap["after"], gap["before"]) for gap in found] == [
        ("begin", "step_transaction/mark"),
        ("step_transaction/mark", "step_transaction/take_over"),
        ("step_transaction/take_over", "instances/commit"),
        ("instances/commit", "commit"),
        ("commit", None),
    ]


async def test_a_transaction_of_a_context_manager_is_named_after_its_caller(
    make_harness: MakeHarness, gaps: list[dict[str, Any]]
) -> None:
    h = await make_harness([Transfer])

    async with h.engine.worker():
        names = {gap["transaction"] for gap in gaps}

    assert "stepwell._store.registrations.machines.register" in names
