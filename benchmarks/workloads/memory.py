"""The memory of a worker while it drains, in its own process."""

from __future__ import annotations

import asyncio
import statistics
import sys
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload
from benchmarks.machines import Once

ROOT = Path(__file__).parents[2]


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(200_000, 100)
    async with bench.engine() as engine:
        await engine.start_many([Once.child({"note": bench.variant.note})] * number)
    seen = await _drain_apart(bench.url, number)
    quarter = len(seen) // 4
    growth = statistics.mean(seen[-quarter:]) - statistics.mean(seen[quarter : 2 * quarter]) if quarter else 0.0
    return {"most": max(seen), "growth": growth}


async def _drain_apart(url: str, number: int) -> list[float]:
    """Megabytes of a worker's process, until it has committed this many steps."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.process", url,
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    seen: list[float] = []
    committed = 0
    while committed < number and process.stdout is not None:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker's process ended after {committed} of {number} steps")
        committed, megabytes = int(line.split()[0]), float(line.split()[1])
        seen.append(megabytes)
    await process.communicate(b"")  # the end of its input ends it
    return seen


WORKLOAD = Workload(
    "memory",
    {
        "most": Measure("a worker's memory while draining", "MB", Most(80)),
        "growth": Measure("its growth from the second to the last quarter of the drain", "MB"),
    },
    run, is_sized=True, repeats=1,
)  # fmt: skip
