"""What the workloads share that drain a backlog: fill, settle, and time one worker until all is committed."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from benchmarks.bench import Bench, committed
from benchmarks.machines import Count, Once


async def drain(bench: Bench, instances: int, steps: int, **settings: Any) -> float:
    """Steps per second of a worker over a backlog of instances with so many steps each."""
    note = bench.variant.note
    entry = Once.child({"note": note}) if steps == 1 else Count.child({"left": steps, "note": note})
    async with bench.engine(**settings) as engine:
        await engine.start_many([entry] * instances)
        await bench.settle()
        began = perf_counter()
        async with engine.worker() as worker:
            await committed(worker, instances * steps)
            elapsed = perf_counter() - began
    await bench.expect_done(instances)
    return instances * steps / elapsed
