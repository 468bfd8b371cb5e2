"""Long segments: the claim is kept, a lost claim stops the segment, and nothing of it is left open."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from stepwell import Status
from stepwell._worker.running.ask_each import CHUNK
from stepwell.pipelines import Pipeline, await_, many_to_one, one_to_many
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.worker.dead_workers import let_reap

PATIENCE = 30
OFTEN = timedelta(milliseconds=20)
TAKE_AWAY = "update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null, attempt = 1"


class Rows:
    """Reads a file row by row, and waits at one row in its first run; notes what was opened, and what was read."""

    def __init__(self, path: Path, rows: int = 1_000, *, waits_at: int = 5) -> None:
        path.write_text("".join(f"{number}\n" for number in range(rows)))
        self.rows, self.waits_at = rows, waits_at
        self.entered, self.gate = threading.Event(), threading.Event()
        self.files: list[IO[str]] = []
        self.read: list[int] = []  # by each run

        @one_to_many
        def rows_of(name: str) -> Iterator[int]:
            with Path(name).open() as file:
                run = len(self.files)
                self.files.append(file)
                self.read.append(0)
                for line in file:
                    if run == 0 and self.read[0] == self.waits_at:
                        self.entered.set()
                        assert self.gate.wait(PATIENCE)
                    self.read[run] += 1
                    yield int(line)

        self.step: Any = rows_of

    @property
    def open(self) -> int:
        return sum(not file.closed for file in self.files)


@many_to_one
async def add_up(numbers: AsyncIterator[int]) -> int:
    total = 0
    async for number in numbers:
        total += number
    return total


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    rows = Rows(tmp_path / "rows.txt")
    yield rows
    rows.gate.set()


async def begun(make_harness: MakeHarness, rows: Rows, tmp_path: Path, **settings: Any) -> tuple[Harness, Any]:
    pipeline = Pipeline("long", [rows.step, add_up])
    h = await make_harness(machines=[pipeline.machine], **settings)
    return h, await h.engine.start(pipeline.machine, pipeline.state(str(tmp_path / "rows.txt")))


async def test_a_segment_in_a_thread_keeps_its_claim_until_it_ends(
    make_harness: MakeHarness, rows: Rows, tmp_path: Path
) -> None:
    """Several leases pass, and another worker that reaps at once is there."""
    lease = timedelta(seconds=1)
    h, run = await begun(make_harness, rows, tmp_path, lease=lease, heartbeat=lease / 5, reap=OFTEN)

    async with h.engine.worker(), h.another_engine() as other, other.worker():
        await eventually(rows.entered.is_set)
        await let_reap(h)
        [before] = await h.sql("select max(lease_until) as until from stepwell.workers")
        await eventually(lambda: lease_grown(h, before["until"] + 2 * lease))
        rows.gate.set()
        result = await run.result(timeout=PATIENCE)

    assert (result, rows.read, rows.open) == (sum(range(rows.rows)), [rows.rows], 0)


async def lease_grown(h: Harness, until: Any) -> bool:
    [row] = await h.sql("select min(lease_until) as until from stepwell.workers")
    return bool(row["until"] > until)


async def test_a_cancelled_segment_stops_reading_and_closes_its_file(
    make_harness: MakeHarness, rows: Rows, tmp_path: Path
) -> None:
    h, run = await begun(make_harness, rows, tmp_path)

    async with h.engine.worker() as worker:
        await eventually(rows.entered.is_set)
        await run.cancel()
        await eventually(lambda: worker.running == 0)
        stuck, open_before = worker.stuck_threads, rows.open
        rows.gate.set()
        await eventually(lambda: worker.stuck_threads == 0)

    assert (await run.get()).status is Status.CANCELLED
    assert (stuck, open_before, rows.open, rows.read) == (1, 1, 0, [rows.waits_at + 1])


async def test_a_segment_of_a_lost_lease_stops_and_runs_again_from_its_start(
    make_harness: MakeHarness, rows: Rows, tmp_path: Path
) -> None:
    """As for every sync step: the thread cannot be stopped, but ends after its current item."""
    h, run = await begun(make_harness, rows, tmp_path, heartbeat=OFTEN, reap=OFTEN)

    async with h.engine.worker() as worker:
        await eventually(rows.entered.is_set)
        lost = worker.id
        await h.sql("delete from stepwell.workers")
        await eventually(lambda: worker.id not in (None, lost))
        await h.sql(TAKE_AWAY)
        await h.sql("notify stepwell_work, 'default'")
        result = await run.result(timeout=PATIENCE)
        rows.gate.set()
        await eventually(lambda: worker.stuck_threads == 0)

    assert result == sum(range(rows.rows))
    assert (rows.read, rows.open) == ([rows.waits_at + 1, rows.rows], 0)


async def test_a_stopping_worker_does_not_hang_on_a_segment_in_a_thread(
    make_harness: MakeHarness, rows: Rows, tmp_path: Path
) -> None:
    h, run = await begun(make_harness, rows, tmp_path, drain_timeout=timedelta(0), reap=OFTEN)
    async with h.engine.worker() as first:
        await eventually(rows.entered.is_set)
    stuck = first.stuck_threads

    async with h.engine.worker():
        await let_reap(h)
        result = await run.result(timeout=PATIENCE)
        rows.gate.set()
        await eventually(lambda: first.stuck_threads == 0)

    assert (stuck, result) == (1, sum(range(rows.rows)))
    assert (rows.read, rows.open) == ([rows.waits_at + 1, rows.rows], 0)


async def test_a_segment_cancelled_while_it_asks_closes_its_file_and_stops(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    rows = Rows(tmp_path / "rows.txt", 3 * CHUNK, waits_at=-1)
    ask = await_("Ask", over="manual", input=int, output=int)
    pipeline = Pipeline("asking", [rows.step, ask, add_up])
    h = await make_harness(machines=[pipeline.machine])

    async with h.engine.worker() as worker:
        with armed("ask_each.appended", hold=True) as appended:
            run = await h.engine.start(pipeline.machine, pipeline.state(str(tmp_path / "rows.txt")))
            await appended.reached()
            open_before = rows.open
            await run.cancel()
            await eventually(lambda: worker.running == 0 and worker.stuck_threads == 0)
            appended.release()

    [row] = await h.sql(
        "select count(*), count(*) filter (where finished_at is null) as open from stepwell.interactions"
    )
    assert (open_before, rows.open, row["count"], row["open"]) == (1, 0, CHUNK, 0)
