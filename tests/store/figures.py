"""Prints what the hot statements cost on the deep backlog, as a table for PERFORMANCE.md.

    .venv/bin/python -m tests.store.figures                      # the embedded Postgres
    .ci/postgres15 .venv/bin/python -m tests.store.figures       # Debian's
"""

from __future__ import annotations

import asyncio
import statistics
import sys

import asyncpg

from stepwell.testing import Harness
from tests.store import backlog
from tests.store.cases import CASES, Case, Sample, sample
from tests.store.plans import benched

RUNS = 7


async def row(url: str, case: Case, given: Sample) -> str:
    async with benched(url, case.settings) as bench:
        plans = [await bench.explain(case.name, *case.arguments(given, case.size)) for _ in range(RUNS)]
    buffers = round(statistics.median(plan.buffers for plan in plans))
    milliseconds = statistics.median(plan.milliseconds for plan in plans)
    return f"| {case.name} | {case.size:,} | {case.session} | {buffers:,} | {milliseconds:.2f} |\n"


async def main() -> None:
    async with Harness() as harness:
        await backlog.build(harness.url)
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


if __name__ == "__main__":
    asyncio.run(main())
