"""The workers of a workload: one in this process, or the processes of `stepwell worker`; and when they are done."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import asyncpg

from benchmarks.bench import LOOK_EVERY, Bench, committed, query
from stepwell import Engine, Handle
from stepwell._worker.worker import Worker

ROOT = Path(__file__).parents[1]

# In the order they are given, and up to the first match, so that a look costs next to nothing.
IS_ANY_OTHER = """
select exists (
  select from unnest($1::bigint[]) as g(id)
  where (select i.status from stepwell.instances i where i.id = g.id) <> $2
)
"""


class Crew(Protocol):
    """The workers of one run."""

    async def committed(self, steps: int, handles: Sequence[Handle[Any]], status: str) -> float:
        """Wait until `steps` more are committed, after which these have the status; returns the time."""


class Here:
    """A worker in this process: its counters tell."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._steps = 0

    async def committed(self, steps: int, handles: Sequence[Handle[Any]], status: str) -> float:
        self._steps += steps
        return await committed(self._worker, self._steps)


class Apart:
    """Workers in other processes: their rows tell, the last ones first, which are nearly always the last to be done."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def committed(self, steps: int, handles: Sequence[Handle[Any]], status: str) -> float:
        ids = [handle.id for handle in reversed(handles)]
        while await self._connection.fetchval(IS_ANY_OTHER, ids, status):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(LOOK_EVERY)
        return perf_counter()


@asynccontextmanager
async def working(bench: Bench) -> AsyncIterator[tuple[Engine, Crew]]:
    """An open engine, and the workers of what it starts: as many processes as the variant says."""
    if not bench.variant.processes:
        async with bench.working() as (engine, worker):
            yield engine, Here(worker)
        return
    async with bench.engine() as engine, processes(bench):
        await _are_here(bench)
        connection = await asyncpg.connect(bench.url)
        try:
            yield engine, Apart(connection)
        finally:
            await connection.close()


@asynccontextmanager
async def processes(bench: Bench, **settings: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """The processes of `stepwell worker`, under their parent; ended with the block."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwell", "worker", "benchmarks.app:engine",
        "--processes", str(bench.variant.processes), cwd=ROOT, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "STEPWELL_DATABASE_URL": bench.url}
        | {f"STEPWELL_{name.upper()}": str(value) for name, value in settings.items()},
    )  # fmt: skip
    try:
        yield parent
    finally:
        if parent.returncode is None:
            parent.terminate()
        await parent.wait()


async def _are_here(bench: Bench) -> None:
    """Wait until all of them have registered."""
    while True:
        [row] = await query(bench.url, "select count(*) as number from stepwell.workers")
        if row["number"] == bench.variant.processes:
            return
        await asyncio.sleep(LOOK_EVERY)
