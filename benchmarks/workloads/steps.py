"""What workloads that drain a backlog share: fill, settle, and time the end."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench, committed, query
from benchmarks.crew import processes
from benchmarks.machines import Count, Once
from stepwell import Engine

LOOK_EVERY = 0.1

# From the start of the first worker, without the start of its process, to the last end.
TOOK = """
select extract(epoch from (select max(finished_at) from stepwell.instances)
                          - (select min(started_at) from stepwell.workers))::float8 as seconds
"""


async def drain(bench: Bench, instances: int, steps: int, **settings: Any) -> float:
    """Steps per second over a backlog of instances with so many steps each."""
    note = bench.variant.note
    entry = Once.child({"note": note}) if steps == 1 else Count.child({"left": steps, "note": note})
    async with bench.engine(**settings) as engine:
        await engine.start_many([entry] * instances)
        await bench.settle()
        if bench.variant.processes:
            rate = instances * steps / await _drain_apart(bench, instances, settings)
        else:
            rate = instances * steps / await _drain_here(engine, instances * steps)
    await bench.expect_done(instances)
    return rate


async def _drain_here(engine: Engine, steps: int) -> float:
    """Seconds of a worker in this process, from its start to the last commit."""
    began = perf_counter()
    async with engine.worker() as worker:
        await committed(worker, steps)
        return perf_counter() - began


async def _drain_apart(bench: Bench, instances: int, settings: dict[str, Any]) -> float:
    """Seconds of the processes of `stepwell worker`, from the start of the first worker to the last commit."""
    async with processes(bench, **settings) as parent:
        left = instances
        while left:
            await asyncio.sleep(LOOK_EVERY)
            if parent.returncode is not None:
                raise RuntimeError(f"the workers ended with {parent.returncode}, and {left} instances are left")
            [row] = await query(bench.url, "select count(*) as left from stepwell.instances where finished_at is null")
            left = row["left"]
        [row] = await query(bench.url, TOOK)
        return float(row["seconds"])
