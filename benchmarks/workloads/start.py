"""`start`, one by one from 10 tasks; no worker runs."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.limit import TASKS
from benchmarks.machines import Once


async def run(bench: Bench) -> dict[str, float]:
    each = bench.size(300, 5)
    state = {"note": bench.variant.note}
    async with bench.engine() as engine:

        async def start_some(number: int) -> None:
            for _ in range(number):
                await engine.start(Once, state)

        await asyncio.gather(*(start_some(2) for _ in range(TASKS)))  # then the pool has its connections
        await bench.settle()
        began = perf_counter()
        await asyncio.gather(*(start_some(each) for _ in range(TASKS)))
        elapsed = perf_counter() - began
    return {"rate": each * TASKS / elapsed}


WORKLOAD = Workload(
    "start", {"rate": Measure("`start`, one by one from 10 tasks", "starts/s", Share(0.7, "inserts"))}, run,
    is_sized=True,
)  # fmt: skip
