"""How long the processes of a soak were on a core: the workers, and the server's for all connections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import asyncpg

from benchmarks.growth.meter import nanoseconds
from benchmarks.soak.samples import Cpu

_BACKENDS = """
select pid from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


class Cores:
    """Adds up what each process has used; one that has gone keeps what it had used when it was last seen."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}
        self._backends: dict[int, int] = {}

    async def look(self, connection: asyncpg.Connection, workers: Sequence[int]) -> Cpu:
        """Time of the workers, and of the connections to their database other than the one that asks."""
        self._note(self._workers, workers)
        self._note(self._backends, [row["pid"] for row in await connection.fetch(_BACKENDS)])
        return Cpu(sum(self._workers.values()) / 1e3, sum(self._backends.values()) / 1e3)

    @staticmethod
    def _note(used: dict[int, int], pids: Sequence[int]) -> None:
        for pid in pids:
            if Path(f"/proc/{pid}/schedstat").exists():
                used[pid] = nanoseconds(pid)
