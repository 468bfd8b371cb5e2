"""Prints what the hot statements cost on the deep backlog, as a table for docs/benchmarks/costs.md.

    .venv/bin/python -m tests.store.figures                      # the embedded Postgres
    .ci/postgres15 .venv/bin/python -m tests.store.figures       # Debian's
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable

import asyncpg

from stepwell.testing import Harness
from tests.store import backlog
from tests.store.cases import CASES, Case, Sample, sample
from tests.store.plans import benched
from tests.store.tenants import CLAIMED, LARGE, cost, fill

RUNS = 7
ROWS = 752_000


async def row(url: str, case: Case, given: Sample) -> str:
    async with benched(url, case.settings) as bench:
        plans = await bench.explain_often(RUNS, case.name, *case.arguments(given, case.size))
    buffers = round(statistics.median(plan.buffers for plan in plans))
    milliseconds = statistics.median(plan.milliseconds for plan in plans)
    return f"| {case.name} | {case.size:,} | {case.session} | {buffers:,} | {milliseconds:.2f} |\n"


async def claims_of_tenants(write: Callable[[str], object]) -> None:
    """What a claim from a fair queue costs in any backlog."""
    write(f"\n| a claim of {CLAIMED} | buffers | ms in the server |\n|---|--:|--:|\n")
    async with Harness() as harness:
        connection = await asyncpg.connect(harness.url)
        for name, tenants in {"an ordinary queue, 100,000 rows": [("a", 100_000)], **LARGE}.items():
            await connection.execute("truncate stepwell.instances")
            for tenant, rows in tenants:
                await fill(connection, tenant, rows, shared=name in LARGE)
            await connection.execute("vacuum analyze stepwell.instances")
            plans = [await cost(harness.url, fair=name in LARGE) for _ in range(RUNS)]
            buffers = round(statistics.median(plan.buffers for plan in plans))
            write(f"| {name} | {buffers:,} | {statistics.median(plan.milliseconds for plan in plans):.2f} |\n")
        await connection.close()


async def main() -> None:
    async with Harness() as harness:
        await backlog.build(harness.url, ROWS)
        await backlog.analyze(harness.url)
        connection = await asyncpg.connect(harness.url)
        version = await connection.fetchval("show server_version")
        given = await sample(connection)
        await connection.close()
        write = sys.stdout.write
        write(f"PostgreSQL {version}; 200,000 runnable, 100,000 future, 100,000 behind one key, 300,000 ended, ")
        write(f"2,000 executing, 50,000 parked; median of {RUNS} prepared runs, each rolled back\n\n")
        write("| statement | rows | connection | buffers | ms in the server |\n|---|--:|---|--:|--:|\n")
        for case in CASES:
            write(await row(harness.url, case, given))
    await claims_of_tenants(sys.stdout.write)


if __name__ == "__main__":
    asyncio.run(main())
