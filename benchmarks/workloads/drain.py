"""Drain a backlog of one-step instances."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.workloads import steps


async def run(bench: Bench) -> dict[str, float]:
    return {"rate": await steps.drain(bench, bench.size(80_000, 100), 1)}


WORKLOAD = Workload(
    "drain", {"rate": Measure("drain a backlog of one-step instances", "steps/s", Share(0.5, "steps"))}, run,
    is_sized=True, has_processes=True,
)  # fmt: skip
