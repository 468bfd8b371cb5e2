"""An idle engine: from a committed start to the begin of its step.

The time counts from the return of `start`, which is after its commit is durable. By a client of the worker's own
process, which notifies it directly, and by another engine, which reaches the worker as a notification of
Postgres. If the workers are in other processes, every client is another engine.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.crew import working
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Timed
from stepwell import Engine

PAUSE = 0.005  # longer than a step takes to its commit, so that the engine is idle again
MILLISECONDS = 1_000


async def run(bench: Bench) -> dict[str, float]:
    async with working(bench) as (engine, _):
        found = await _percentiles(bench, engine)
        if not bench.variant.processes:
            async with bench.engine() as elsewhere:
                other = await _percentiles(bench, elsewhere)
            found |= {f"notice {name}": value for name, value in other.items()}
    return found


async def _percentiles(bench: Bench, client: Engine) -> dict[str, float]:
    await _sample(bench, client, bench.size(20, 1))
    found = await _sample(bench, client, bench.size(120, 3))
    return {"p50": percentile(found, 50), "p99": percentile(found, 99)}


async def _sample(bench: Bench, client: Engine, number: int) -> list[float]:
    latencies = []
    for _ in range(number):
        handle = await client.start(Timed, {"note": bench.variant.note})
        started = perf_counter()
        begun = await handle.result(timeout=10)
        latencies.append(max(0.0, begun - started) * MILLISECONDS)
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
    run, is_sized=True, has_processes=True,
)  # fmt: skip
