"""An idle engine: from the call of `complete` until the step begins that gets the reply."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Asked
from stepwell import Engine

PAUSE = 0.01  # until the engine is idle
MILLISECONDS = 1_000


async def run(bench: Bench) -> dict[str, float]:
    begun: dict[int, float] = {}
    async with bench.working(begun) as (engine, _):
        await _sample(engine, begun, bench.size(20, 1))
        latencies = await _sample(engine, begun, bench.size(120, 3))
    return {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)}


async def _sample(engine: Engine, begun: dict[int, float], number: int) -> list[float]:
    latencies = []
    for _ in range(number):
        handle = await engine.start(Asked)
        await handle.wait(timeout=10, until="settled")
        [interaction] = (await engine.interactions.pending()).items
        await asyncio.sleep(PAUSE)
        called = perf_counter()
        await engine.complete(interaction=interaction.id, reply=True)
        await handle.wait(timeout=10)
        latencies.append((begun[handle.id] - called) * MILLISECONDS)
    return latencies


WORKLOAD = Workload(
    "answer_latency",
    {
        "p50": Measure("idle: answer → the step that goes on by it, p50", "ms", Most(5)),
        "p99": Measure("idle: answer → the step that goes on by it, p99", "ms", Most(20)),
    },
    run,
)
