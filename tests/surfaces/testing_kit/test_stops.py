"""`explore_stops`: a worker process stopped or killed between two statements shows what is stuck or done twice."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Context, Done, HarnessError, InvalidInput, Machine, step
from stepwell.testing import Harness, explore_stops
from tests.surfaces.testing_kit.stoppable import CREATE_LEDGER, Careful, Hasty, Leaf, booked

FLUSH = "stepwell._store.operations.commit._commit_full"


class Local(Machine, initial="work"):
    """Works alone."""

    @step
    async def work(self, ctx: Context[Any]) -> Done:
        return Done()


async def hasty(h: Harness) -> Any:
    await h.sql(CREATE_LEDGER)
    return await (await h.engine.start(Hasty, {"url": h.url})).result()


async def careful(h: Harness) -> Any:
    await h.sql(CREATE_LEDGER)
    return await (await h.engine.start(Careful, {})).result()


async def test_an_effect_that_a_killed_worker_repeats_is_reported() -> None:
    report = await explore_stops(hasty, machines=[Hasty, Leaf], look=booked, how=["kill"], check=False, at_once=8)

    found = {(stop.gap.transaction, d.what) for stop in report.failed for d in stop.differences}
    assert found == {(FLUSH, "returned: look")}
    assert "expected 1, came 2" in str(report)
    with pytest.raises(AssertionError, match="went wrong"):
        report.check()


async def test_a_transactional_step_survives_every_kill() -> None:
    report = await explore_stops(careful, machines=[Careful, Leaf], look=booked, how=["kill"], at_once=8)

    assert report.ok
    assert "nothing was stuck" in str(report)
    assert {stop.how for stop in report.stops} == {"kill"}
    assert "stepwell._store.step_transaction.transaction.Transaction" in {gap.transaction for gap in report.gaps}


async def test_machines_that_another_process_cannot_import_are_refused() -> None:
    class Hidden(Local, initial="work"):
        """No other process can import it."""

    async def scenario(h: Harness) -> None:
        await h.engine.start(Hidden)

    with pytest.raises(InvalidInput, match="define it in a module"):
        await explore_stops(scenario, machines=[Hidden])


async def test_a_scenario_that_is_no_coroutine_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="async def scenario"):
        await explore_stops(lambda h: None, machines=[Local])  # type: ignore[arg-type, return-value]


async def test_a_scenario_that_does_not_end_without_a_stop_is_refused() -> None:
    async def scenario(h: Harness) -> None:
        raise ValueError("it is wrong by itself")

    with pytest.raises(HarnessError, match="it is wrong by itself"):
        await explore_stops(scenario, machines=[Local])
