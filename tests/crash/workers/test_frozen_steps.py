"""SIGSTOP in a transactional step: its locks are free, and it runs again, once its worker's lease has expired."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker
from tests.support.crash_app import CREATE_LEDGER, Booking
from tests.support.processes import WorkerProcess
from tests.support.waiting import eventually

LEASE, REAP = 3.0, 0.5
SETTINGS = {"lease": LEASE, "heartbeat": 0.5, "reap": REAP}
MARGIN = 6.0  # seconds, for a machine under load; the step itself may take a minute
HELD = """
select from pg_stat_activity
where datname = current_database() and application_name like 'stepwell step%' and state <> 'idle'"""


@pytest.fixture
async def ledger(h: Harness) -> Harness:
    for statement in CREATE_LEDGER.split(";")[:3]:
        await h.sql(statement)
    return h


async def frozen_in(ledger: Harness, start_worker: StartWorker, before: str, session: str) -> WorkerProcess:
    """A worker that has stopped itself before a statement of a step's transaction, while another one lives."""
    bystander = await start_worker(ledger.url, **SETTINGS, queues={"plain": 5})
    await bystander.ready()
    frozen = await start_worker(
        ledger.url, module="frozen_process", options=("--before", before), transactional_session=session, **SETTINGS
    )
    await frozen.ready()
    return frozen


def is_stopped(process: WorkerProcess) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("before", "session"),
    [("step_transaction/mark", "asyncpg"), ("step_transaction/take_over", "asyncpg"), ("step_transaction/take_over",
                                                                                       "sqlalchemy")],
    ids=["begun", "in the author's part", "in the author's part, with SQLAlchemy"],
)
async def test_a_frozen_step_keeps_its_locks_no_longer_than_its_worker_its_rows(
    ledger: Harness, start_worker: StartWorker, before: str, session: str
) -> None:
    frozen = await frozen_in(ledger, start_worker, before, session)
    booking = await ledger.engine.start(Booking)
    await eventually(lambda: is_stopped(frozen))

    await eventually(lambda: nobody_holds(ledger), LEASE + REAP + MARGIN)
    other = await start_worker(ledger.url, **SETTINGS)
    result = await booking.result(timeout=LEASE + REAP + 2 * MARGIN)
    await other.stop()
    frozen.wake()
    later = await (await ledger.engine.start(Booking)).result(timeout=LEASE + 2 * MARGIN)

    assert (result, later) == ("booked", "booked")
    assert [row["booked"] for row in await ledger.sql("select booked from public.counter")] == [2]
    frozen.send(signal.SIGTERM)
    assert await frozen.ended() == 0


async def nobody_holds(h: Harness) -> bool:
    """Whether no session of a step is within a transaction."""
    return not await h.sql(HELD)
