"""An idle engine: from the call of `signal` until a waiting client has the result of the instance that was parked."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.crew import working
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Parked
from stepwell import Engine

PAUSE = 0.01  # until the client waits, and the engine is idle
MILLISECONDS = 1_000


async def run(bench: Bench) -> dict[str, float]:
    async with working(bench) as (engine, _):
        await _sample(bench, engine, bench.size(20, 1))
        latencies = await _sample(bench, engine, bench.size(120, 3))
    return {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)}


async def _sample(bench: Bench, engine: Engine, number: int) -> list[float]:
    latencies = []
    for _ in range(number):
        handle = await engine.start(Parked, {"note": bench.variant.note})
        await handle.wait(timeout=10, until="settled")
        waiting = asyncio.create_task(handle.result(timeout=10))
        await asyncio.sleep(PAUSE)
        began = perf_counter()
        await handle.signal("go")
        await waiting
        latencies.append((perf_counter() - began) * MILLISECONDS)
    return latencies


WORKLOAD = Workload(
    "signal_latency",
    {
        "p50": Measure("idle: signal → parked instance finished and seen by the client, p50", "ms", Most(5)),
        "p99": Measure("idle: signal → parked instance finished and seen by the client, p99", "ms", Most(20)),
    },
    run, is_sized=True, has_processes=True,
)  # fmt: skip
