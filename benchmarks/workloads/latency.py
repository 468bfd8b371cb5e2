"""An idle engine: from a committed start to the begin of its step.

`start` returns as soon as it knows that its commit is durable: that is the beginning. By a client of the worker's own
process, which tells it directly, and by another engine, whose start reaches the worker as a notice of Postgres.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Timed
from stepwell import Engine

PAUSE = 0.005  # longer than a step takes to its commit, so that the engine is idle again
MILLISECONDS = 1_000


async def run(bench: Bench) -> dict[str, float]:
    begun: dict[int, float] = {}
    samples = bench.size(120, 3)
    async with bench.working(begun) as (engine, _), bench.engine() as elsewhere:
        for client in (engine, elsewhere):
            await _sample(client, begun, bench.size(20, 1))
        near = await _sample(engine, begun, samples)
        far = await _sample(elsewhere, begun, samples)
    return {
        "p50": percentile(near, 50), "p99": percentile(near, 99),
        "notice p50": percentile(far, 50), "notice p99": percentile(far, 99),
    }  # fmt: skip


async def _sample(client: Engine, begun: dict[int, float], number: int) -> list[float]:
    latencies = []
    for _ in range(number):
        handle = await client.start(Timed)
        started = perf_counter()
        await handle.result(timeout=10)
        latencies.append(max(0.0, begun[handle.id] - started) * MILLISECONDS)
        await asyncio.sleep(PAUSE)
    return latencies


WORKLOAD = Workload(
    "latency",
    {
        "p50": Measure("idle: start committed → step begins, p50", "ms", Most(1.5)),
        "p99": Measure("idle: start committed → step begins, p99", "ms", Most(8)),
        "notice p50": Measure("the same, started by another engine, p50", "ms"),
        "notice p99": Measure("the same, started by another engine, p99", "ms"),
    },
    run,
)
