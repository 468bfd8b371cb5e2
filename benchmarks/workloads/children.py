"""20 parents × 100 children: from the first start to the last join."""

from __future__ import annotations

from time import perf_counter

from benchmarks.bench import Bench, committed
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Family

PARENTS = 20


async def run(bench: Bench) -> dict[str, float]:
    children = bench.size(100, 5)
    steps = PARENTS * (children + 2)  # each parent has one that spawns and one that joins
    async with bench.working() as (engine, worker):
        await bench.settle()
        began = perf_counter()
        await engine.start_many([Family.child({"children": children, "note": bench.variant.note})] * PARENTS)
        await committed(worker, steps)
        elapsed = perf_counter() - began
    await bench.expect_done(PARENTS * (children + 1))
    return {"rate": steps / elapsed}


WORKLOAD = Workload(
    "children", {"rate": Measure("20 parents × 100 children, start to last join", "steps/s", Share(0.3, "steps"))},
    run, is_sized=True,
)  # fmt: skip
