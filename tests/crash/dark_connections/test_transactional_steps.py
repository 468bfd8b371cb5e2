"""A network that forgets connections: transactional steps soon run again, and their locks are dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell._process import probes
from tests.crash.dark_connections.site import ANSWER, LOCKS, MARGIN, SLEEPS, Booked, Site, Slow, is_not
from tests.support.waiting import eventually


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_transactional_steps_continue_within_half_a_lease_of_darkness(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        first = await site.harness.engine.start_many([Booked.child() for _ in range(20)])
        assert [await booked.result(timeout=20) for booked in first] == ["booked"] * 20

        site.proxy.forget()
        second = await site.harness.engine.start_many([Booked.child() for _ in range(20)])
        await eventually(lambda: worker.stats.committed >= 40, ANSWER + MARGIN)
        results = [await booked.result(timeout=20) for booked in second]

    assert results == ["booked"] * 20
    assert worker.stats.leases_lost == 0
    footprints = await site.harness.sql("select instance, count(*) from footprints group by 1 order by 1")
    assert [tuple(row) for row in footprints] == [(booked.id, 1) for booked in [*first, *second]]


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_dark_transactional_step_loses_its_row_lock_within_the_lease(site: Site) -> None:
    """The outcome is written, and COMMIT is not sent, when the connection goes dark."""
    stands, goes_on = asyncio.Event(), asyncio.Event()

    async def stop(gap: dict[str, Any]) -> None:
        if gap["transaction"].endswith(".Transaction") and gap["before"] == "commit" and not stands.is_set():
            stands.set()
            await goes_on.wait()

    probes.hooks[probes.GAP] = stop
    try:
        async with site.engine.worker() as worker:
            booked = await site.harness.engine.start(Booked)
            await stands.wait()

            site.proxy.forget()
            await eventually(site.left)
            await eventually(lambda: is_not(site.left), LOCKS + MARGIN)
            goes_on.set()
            result = await booked.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "booked"
    assert worker.stats.leases_lost == 0
    assert len(await site.harness.sql("select from footprints")) == 1


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_step_with_a_dark_statement_of_its_own_runs_again_soon(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        slow = await site.harness.engine.start(Slow, {"seconds": 0.5})
        await eventually(lambda: site.harness.sql(SLEEPS))

        site.proxy.forget()
        await eventually(lambda: site.runs[slow.id, "start"] == 2, ANSWER + MARGIN)  # the step itself may take a minute
        result = await slow.result(timeout=30)

    assert result == "slept"
    assert worker.stats.leases_lost == 0


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_statement_that_the_server_works_on_is_waited_for(site: Site) -> None:
    async with site.engine.worker({"default": 5}):
        slow = await site.harness.engine.start(Slow, {"seconds": ANSWER * 1.5})

        result = await slow.result(timeout=30)

    assert result == "slept"
    assert site.runs == {(slow.id, "start"): 1}
