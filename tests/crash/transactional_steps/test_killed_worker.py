"""SIGKILL of a worker at every point of a transactional step: its writes are there exactly once."""

from __future__ import annotations

import signal

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, is_all_over, is_executing
from tests.support.crash_app import CREATE_LEDGER, Booking
from tests.support.waiting import eventually

IN_STEP = "in the step, after its writes"
WRITTEN = ["transactional.written", "transactional.committed"]
POINTS = {
    "asyncpg": ["transactional.begun", IN_STEP, "transactional.returned", *WRITTEN],
    "sqlalchemy": [IN_STEP, *WRITTEN],  # around what its session writes
}
EACH = 3


@pytest.fixture
async def ledger(h: Harness) -> Harness:
    connection = await asyncpg.connect(h.url)
    await connection.execute(CREATE_LEDGER)
    await connection.close()
    return h


async def bookings(h: Harness) -> list[int]:
    """Instances in the ledger, one entry for each time."""
    return [row["instance"] for row in await h.sql("select instance from public.ledger order by instance")]


@pytest.mark.parametrize("session", POINTS)
async def test_writes_and_outcome_commit_together_and_once_wherever_a_kill_hits(
    ledger: Harness, start_worker: StartWorker, session: str
) -> None:
    """A worker dies at each point in turn; the next worker continues from there."""
    started: list[int] = []
    for point in POINTS[session]:
        entries = [Booking.child({"dies_in_step": point == IN_STEP})] * EACH
        started += [handle.id for handle in await ledger.engine.start_many(entries)]  # type: ignore[misc]
        killed = await start_worker(
            ledger.url, crash=None if point == IN_STEP else point, transactional_session=session
        )
        assert await killed.ended() == -signal.SIGKILL
        [seen] = await ledger.sql(
            "select (select count(*) from public.ledger) as booked, (select booked from public.counter) as counted, "
            "count(*) as gone_on from stepwell.instances where step = 'end'"
        )
        assert seen["booked"] == seen["counted"] == seen["gone_on"], f"after {point}"

    await start_worker(ledger.url, transactional_session=session)
    await eventually(lambda: is_all_over(ledger))

    assert await bookings(ledger) == sorted(started)
    assert [row["booked"] for row in await ledger.sql("select booked from public.counter")] == [len(started)]
    assert not await is_executing(ledger)


async def test_a_plain_step_killed_after_its_writes_writes_twice(
    ledger: Harness, start_worker: StartWorker
) -> None:
    """Shows that the other test can fail."""
    plain = await ledger.engine.start(Booking, step="book_plainly")
    killed = await start_worker(ledger.url, crash="executor.returned")
    assert await killed.ended() == -signal.SIGKILL

    await start_worker(ledger.url)
    await plain.result(timeout=30)

    assert await bookings(ledger) == [plain.id, plain.id]
