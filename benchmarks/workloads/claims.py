"""What claiming 100 rows costs the server among many others, against the same without others.

It is the claim's part of `make growth`, which has more cases, and the costs of marking started and committing.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload
from benchmarks.growth import scenarios
from benchmarks.growth.comparing import NORMAL, QUICK, SCHEDSTAT, compare, sites

AROUND = [scenarios.ALL[name] for name in ("runnable", "terminal", "executing", "parked", "behind_key", "future")]


async def run(bench: Bench) -> dict[str, float]:
    if not SCHEDSTAT.exists():
        return {}
    sizes = QUICK if bench.is_quick else NORMAL
    async with sites(bench.url) as (alone, around):
        return {each.name: (await compare(each, sizes, alone, around, lambda: None)).claim for each in AROUND}


WORKLOAD = Workload(
    "claims",
    {
        each.name: Measure(f"claiming 100 rows, {each.label} around them: server CPU", "× empty", Most(scenarios.MOST))
        for each in AROUND
    },
    run,
    repeats=1,
)
