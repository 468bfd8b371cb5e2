"""`start_many`; no worker runs."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Once


async def run(bench: Bench) -> dict[str, float]:
    entries = [Once.child({"note": bench.variant.note}) for _ in range(bench.size(20_000, 100))]
    async with bench.engine() as engine:
        await bench.settle()
        began = perf_counter()
        await engine.start_many(entries)
        elapsed = perf_counter() - began
    return {"rate": len(entries) / elapsed}


WORKLOAD = Workload(
    "start_many", {"rate": Measure("`start_many`", "starts/s", Share(0.7, "bulk inserts"))}, run, is_sized=True,
)  # fmt: skip
