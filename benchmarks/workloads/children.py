"""20 parents × 100 children: from the first start to the last join."""

from __future__ import annotations

import statistics
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.crew import working
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Family

PARENTS = 20
ROUNDS = 15  # of some 60 ms each: in the first ones, connections still plan their statements


async def run(bench: Bench) -> dict[str, float]:
    children = bench.size(100, 5)
    steps = PARENTS * (children + 2)  # each parent has one that spawns and one that joins
    rounds = bench.size(ROUNDS, 1)
    entry = Family.child({"children": children, "note": bench.variant.note})
    rates = []
    async with working(bench) as (engine, crew):
        await bench.settle()
        for _ in range(rounds):
            began = perf_counter()
            parents = await engine.start_many([entry] * PARENTS)
            ended = await crew.committed(steps, parents, "done")
            rates.append(steps / (ended - began))
    await bench.expect_done(rounds * PARENTS * (children + 1))
    return {"rate": statistics.median(rates)}


WORKLOAD = Workload(
    "children", {"rate": Measure("20 parents × 100 children, start to last join", "steps/s", Share(0.3, "steps"))},
    run, is_sized=True, has_processes=True,
)  # fmt: skip
