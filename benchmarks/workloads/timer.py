"""A timer of 200 ms: how late its step begins, by the due time in the row; an interaction's timeout, too."""

from __future__ import annotations

import asyncio

from benchmarks.bench import Bench, query
from benchmarks.crew import working
from benchmarks.figures import Measure, Most, Workload, percentile
from benchmarks.machines import Alarm, Hurried
from stepwell import Machine

PAUSE = 0.011  # between two starts; no divisor of anything
MILLISECONDS = 1_000

LATE = """
select (r.result)::float8 - extract(epoch from d.at)::float8 as late
from ({due}) d join stepwell.instance_data r on r.id = d.id
where d.id = any ($1)
"""


async def run(bench: Bench) -> dict[str, float]:
    late = await _lateness(bench, Alarm, "select id, due_at as at from stepwell.instances")
    too_late = await _lateness(bench, Hurried, "select instance_id as id, deadline as at from stepwell.interactions")
    return {
        "p50": percentile(late, 50), "p99": percentile(late, 99),
        "timeout p50": percentile(too_late, 50), "timeout p99": percentile(too_late, 99),
    }  # fmt: skip


async def _lateness(bench: Bench, machine: type[Machine], due: str) -> list[float]:
    """How long after their time the second steps of some instances began."""
    handles = []
    async with working(bench) as (engine, crew):
        for _ in range(bench.size(200, 3)):
            handles.append(await engine.start(machine, {"note": bench.variant.note}))
            await asyncio.sleep(PAUSE)
        await crew.committed(2 * len(handles), handles, "done")
    rows = await query(bench.url, LATE.format(due=due), [[handle.id for handle in handles]])
    return [row["late"] * MILLISECONDS for row in rows]


WORKLOAD = Workload(
    "timer",
    {
        "p50": Measure("a timer of 200 ms: late by, p50", "ms"),
        "p99": Measure("a timer of 200 ms: late by, p99", "ms", Most(20)),
        "timeout p50": Measure("a question's timeout of 200 ms: late by, p50", "ms"),
        "timeout p99": Measure("a question's timeout of 200 ms: late by, p99", "ms"),
    },
    run, is_sized=True, has_processes=True,
)  # fmt: skip
