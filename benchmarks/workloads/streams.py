"""A file of rows through pipelines, by a worker in its own process: how fast, and with how much memory.

Over the null transport the worker itself completes each interaction at once; so every row is asked about, replied to,
continued as an instance, and read again for the sum: all of it by the measured process.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import asyncpg

from benchmarks import streams
from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload
from benchmarks.progress import say
from stepwell import Engine
from stepwell.pipelines import Pipeline

ROOT = Path(__file__).parents[2]
LOOK_EVERY = 0.5
SAY_EVERY = 60  # samples
PATIENCE = 3_600
A_MILLION = 1_000_000


@dataclass
class Seen:
    """Observed while the rows passed: rows per second, megabytes, and (seconds, completions so far) now and then."""

    rate: float = 0.0
    megabytes: list[float] = field(default_factory=list)
    completions: list[tuple[float, int]] = field(default_factory=list)

    def pace(self, begin: float, end: float) -> float:
        """Completions per second in a part of the way, from 0 to 1."""
        last = max([number for _, number in self.completions], default=0)
        part = [(at, number) for at, number in self.completions if begin * last <= number <= end * last]
        seconds = part[-1][0] - part[0][0] if part else 0.0
        return (part[-1][1] - part[0][1]) / seconds if seconds else 0.0


async def run(bench: Bench) -> dict[str, float]:
    summed = await pass_through(bench, streams.summed, bench.size(A_MILLION, 300))
    written = await pass_through(bench, streams.written, bench.size(A_MILLION, 300))
    asked = await pass_through(bench, streams.asked_each, bench.size(100_000, 30))
    return {
        "summed": summed.rate, "summed most": max(summed.megabytes), "written": written.rate,
        "written most": max(written.megabytes), "asked": asked.rate, "asked most": max(asked.megabytes),
    }  # fmt: skip


async def run_million(bench: Bench) -> dict[str, float]:
    asked = await pass_through(bench, streams.asked_each, bench.size(A_MILLION, 30))
    return {
        "asked": asked.rate, "second": asked.pace(0.25, 0.5), "last": asked.pace(0.75, 1.0),
        "most": max(asked.megabytes), "growth": asked.megabytes[-1] - asked.megabytes[len(asked.megabytes) // 4],
    }  # fmt: skip


async def pass_through(bench: Bench, pipeline: Pipeline, rows: int) -> Seen:
    """Run a pipeline over a file of this many rows, in its own worker process."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        total = await asyncio.to_thread(streams.write_file, path, rows)
        engine = Engine(bench.url, **streams.engine())
        await engine.migrate()
        async with engine, _worker(bench.url, seen):
            began = perf_counter()
            looking = asyncio.create_task(_look(bench.url, seen))
            handle = await engine.start(pipeline.machine, pipeline.state(str(path)))
            result = await handle.result(timeout=PATIENCE)
            seen.rate = rows / (perf_counter() - began)
            looking.cancel()
    if result != total:
        raise RuntimeError(f"{pipeline.name}: {result} came of {rows} rows instead of {total}")
    return seen


@asynccontextmanager
async def _worker(url: str, seen: Seen) -> AsyncIterator[None]:
    """A worker in a process; its reports of memory are recorded."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.process", url, "streams", cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    noting = asyncio.create_task(_note(process, seen))
    try:
        while not seen.megabytes and not noting.done():  # noqa: ASYNC110 - there is no event for its first line
            await asyncio.sleep(0.01)
        yield
    finally:
        if process.stdin is not None:
            process.stdin.close()  # the end of its input ends it
        await noting
        await process.wait()


async def _note(process: Process, seen: Seen) -> None:
    while process.stdout is not None and (line := await process.stdout.readline()):
        seen.megabytes.append(float(line.split()[1]))


async def _look(url: str, seen: Seen) -> None:
    """Record now and then how many interactions are completed."""
    connection = await asyncpg.connect(url)
    began = perf_counter()
    try:
        while True:
            rows = await connection.fetch("select opened, resolved from stepwell.await_units")
            if rows:
                [(opened, resolved)] = rows
                at = perf_counter() - began
                seen.completions.append((at, resolved))
                if len(seen.completions) % SAY_EVERY == 0:
                    say(f"  {at:.0f} s: {opened:,} asked, {resolved:,} answered, {seen.megabytes[-1]:.0f} MB")
            await asyncio.sleep(LOOK_EVERY)
    finally:
        await connection.close()


WORKLOAD = Workload(
    "streams",
    {
        "summed": Measure("1 million rows of a file through one segment, added up", "rows/s"),
        "summed most": Measure("the worker's memory meanwhile", "MB", Most(150)),
        "written": Measure("the same, written to a file", "rows/s"),
        "written most": Measure("the worker's memory while writing", "MB", Most(150)),
        "asked": Measure("100,000 rows through `Ask.each`, window 200: asked, answered, gone on, added up", "rows/s"),
        "asked most": Measure("the worker's memory while asking about 100,000", "MB", Most(200)),
    },
    run, repeats=1,
)  # fmt: skip

MILLION = Workload(
    "million",
    {
        "asked": Measure("1 million rows through `Ask.each`, window 200: asked, answered, gone on, added up", "rows/s"),
        "second": Measure("answers in the second quarter of them", "answers/s"),
        "last": Measure("answers in the last quarter", "answers/s"),
        "most": Measure("the worker's memory while asking about 1 million", "MB", Most(200)),
        "growth": Measure("its growth after the first quarter of the time", "MB"),
    },
    run_million, repeats=1,
)  # fmt: skip
