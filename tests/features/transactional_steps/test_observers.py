"""Observers of transactional steps: hooks, and the test kit's crashes."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, step
from stepwell.testing import Harness, armed, explore_crashes
from tests.conftest import MakeHarness
from tests.features.transactional_steps.ledger import SESSIONS, note
from tests.support.waiting import eventually


class Booking(Machine):
    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Next:
        await note(ctx.connection, f"booking {ctx.id}")
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("booked")


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_transactional_step_survives_every_crash_that_the_test_kit_tries(session: str) -> None:
    """With a table that has no unique index: a second write would be there."""

    async def scenario(h: Harness) -> Any:
        await h.sql("create table public.ledger (note text)")
        booking = await h.engine.start(Booking)
        await h.drain()
        [row] = await h.sql("select count(*) as rows from public.ledger")
        return [row["rows"], (await booking.get()).result]

    report = await explore_crashes(scenario, machines=[Booking], transactional_session=session)

    assert str(report) == "2 commits, 4 crashes: every one came out as without a crash"


async def test_hooks_receive_the_committed_and_stale_events_of_the_step(make: MakeHarness) -> None:
    h = await make([Booking])
    heard: list[tuple[str, int, str]] = []
    h.engine.on(["committed", "stale"], lambda event: heard.append((event.name, event.id, event.step)))
    lost, kept = [await h.engine.start(Booking) for _ in range(2)]

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker() as worker:
            await returned.reached(2)
            await h.sql(
                "update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null, "
                "queue = 'elsewhere' where id = $1", lost.id,
            )  # fmt: skip
            returned.release()
            await kept.result(timeout=30)
            await eventually(lambda: len(heard) == 3)

    committed = [("committed", kept.id, "end"), ("committed", kept.id, "start")]
    assert sorted(heard) == [*committed, ("stale", lost.id, "start")]
    assert (worker.stats.committed, worker.stats.stale) == (2, 1)
