"""Machines of 3 steps, without run-ahead: every step is claimed."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.workloads import steps


async def run(bench: Bench) -> dict[str, float]:
    return {"rate": await steps.drain(bench, bench.size(24_000, 50), 3, run_ahead=0)}


WORKLOAD = Workload(
    "three_steps", {"rate": Measure("machines of 3 steps, run-ahead off", "steps/s", Share(0.5, "steps"))}, run,
    is_sized=True, has_processes=True,
)  # fmt: skip
