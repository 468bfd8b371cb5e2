"""A timer of 200 ms: how late its step begins, by the due time that stands in the row."""

from __future__ import annotations

import asyncio

from benchmarks.bench import Bench, committed, query
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Alarm

PAUSE = 0.011  # between two starts; no divisor of anything
MILLISECONDS = 1_000


async def run(bench: Bench) -> dict[str, float]:
    rung: dict[int, float] = {}
    number = bench.size(200, 3)
    async with bench.working(rung) as (engine, worker):
        for _ in range(number):
            await engine.start(Alarm)
            await asyncio.sleep(PAUSE)
        await committed(worker, 2 * number)
    due = await query(bench.url, "select id, extract(epoch from due_at)::float8 as at from stepwell.instances")
    late = [(rung[row["id"]] - row["at"]) * MILLISECONDS for row in due]
    return {"p50": percentile(late, 50), "p99": percentile(late, 99)}


WORKLOAD = Workload(
    "timer",
    {
        "p50": Measure("a timer of 200 ms: late by, p50", "ms"),
        "p99": Measure("a timer of 200 ms: late by, p99", "ms", Most(20)),
    },
    run,
)
