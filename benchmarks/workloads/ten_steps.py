"""Machines of 10 steps, with run-ahead."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.workloads import steps


async def run(bench: Bench) -> dict[str, float]:
    return {"rate": await steps.drain(bench, bench.size(15_000, 20), 10, run_ahead=16)}


WORKLOAD = Workload(
    "ten_steps", {"rate": Measure("machines of 10 steps, run-ahead", "steps/s", Share(0.75, "steps"))}, run,
    is_sized=True, has_processes=True,
)  # fmt: skip
