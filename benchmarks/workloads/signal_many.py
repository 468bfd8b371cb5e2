"""500 parked instances, all signalled with `signal_many`: from that call to the last commit."""

from __future__ import annotations

import statistics
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.crew import working
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Parked

ROUNDS = 15  # of some 20 ms each: in the first ones, connections still plan their statements


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(500, 20)
    entry = Parked.child({"note": bench.variant.note})
    rates = []
    async with working(bench) as (engine, crew):
        for _ in range(bench.size(ROUNDS, 1)):
            handles = await engine.start_many([entry] * number)
            await crew.committed(number, handles, "awaiting_signal")
            began = perf_counter()
            await engine.signal_many([(handle.id, "go") for handle in handles])
            ended = await crew.committed(number, handles, "done")
            rates.append(number / (ended - began))
    return {"rate": statistics.median(rates)}


WORKLOAD = Workload(
    "signal_many", {"rate": Measure("500 parked, all signalled with `signal_many`", "steps/s", Share(0.3, "steps"))},
    run, is_sized=True, has_processes=True,
)  # fmt: skip
