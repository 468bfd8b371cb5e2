"""What one backend of the server has used: its time on a core, the buffers it touched, the time that passed."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import asyncpg

from stepwell._store.connection.pool import Database

# Of this backend alone, and of tables and indexes only. Postgres counts it for each backend since version 18.
_BUFFERS = "select sum(hits + coalesce(reads, 0))::bigint from pg_stat_get_backend_io($1) where object = 'relation'"

_WORKER = """
select pid from pg_stat_activity where datname = current_database() and application_name = 'stepwell worker'
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost: milliseconds on a core, milliseconds of waiting for it, buffers."""

    cpu: float = 0.0
    wall: float = 0.0
    buffers: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall, self.buffers + other.buffers)

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        """The median of each of the three."""
        return cls(
            statistics.median(cost.cpu for cost in costs),
            statistics.median(cost.wall for cost in costs),
            statistics.median(cost.buffers for cost in costs),
        )


class Meter:
    """Observes the one connection of a database, from another one."""

    def __init__(self, database: Database, observer: asyncpg.Connection) -> None:
        self._database = database
        self._observer = observer
        self._pid = 0
        self.cost = Cost()  # of the last measured block

    async def find_backend(self) -> None:
        """Find out the present backend: a pool closes a connection that was idle for minutes, such as during a fill."""
        await self.flush_counters()
        [row] = await self._observer.fetch(_WORKER)
        self._pid = row["pid"]

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure the block, into `cost`."""
        buffers, before, began = await self._buffers(), nanoseconds(self._pid), perf_counter()
        yield
        wall = perf_counter() - began
        used = nanoseconds(self._pid) - before
        self.cost = Cost(used / 1e6, wall * 1e3, await self._buffers() - buffers)

    async def _buffers(self) -> int:
        await self.flush_counters()
        return int(await self._observer.fetchval(_BUFFERS, self._pid) or 0)

    async def flush_counters(self) -> None:
        """Let the backend publish its counters: without a request it does so once a second at most."""
        async with self._database.transaction() as session:
            await session.run("select pg_stat_force_next_flush()")


def nanoseconds(pid: int) -> int:
    """Time on a core so far, from the scheduler's own count: the clock ticks of `stat` are longer than a claim."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[0])
