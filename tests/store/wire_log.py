"""The statements that are sent to the server: the driver's own log of queries, by the names of statements."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import stepwell._store
from stepwell._store.connection.pool import Database
from stepwell._store.connection.sql_files import statement
from tests.support.waiting import eventually

_SQL = Path(stepwell._store.__file__).parent / "sql"
_FILES = [str(path.relative_to(_SQL).with_suffix("")) for path in _SQL.rglob("*.sql")]
_NAMES = {statement(name): name for name in _FILES}

# What a worker sends by its clock, whatever work it has.
HOUSEKEEPING = {
    "instances/wake_due", "workers/beat", "workers/elect", "instances/find_lost", "concurrency_keys/find_idle",
    "instances/admit_versions", "workers/forget", "instances/prune", "limits/prune", "fair_queues/migrate",
    "interactions/release_lost", "await_units/release_stuck", "await_units/find_orphaned", "children/find_childless",
    "workers/find_vacuum_blockers", "workers/end_stalled", "await_units/clean_up",
    "BEGIN", "COMMIT",
}  # fmt: skip

# A connection asks once about each type of array that it uses; no operation pays for that twice.
_DRIVERS_OWN = ("typeinfo_tree", "current_setting('jit')", "set_config('jit'")


class Tally:
    """Counts and lists the statements of some databases since it was attached, or since the last `clear`."""

    def __init__(self, *databases: Database) -> None:
        self._databases = databases
        self._log: list[str] = []
        self._before = 0

    async def attach(self) -> None:
        """Open every connection the pools may have, and attach to the driver's log of each."""
        for database in self._databases:
            pool = database.pool
            assert pool is not None
            async with AsyncExitStack() as stack:
                for _ in range(pool.get_max_size()):
                    connection: Any = await stack.enter_async_context(pool.acquire())
                    connection.add_query_logger(self._hear)
        self.clear()

    def _hear(self, record: Any) -> None:
        if record.query in _NAMES or not any(word in record.query for word in _DRIVERS_OWN):
            self._log.append(_name(record.query))

    def clear(self) -> None:
        self._log.clear()
        self._before = self._now()

    @property
    def sent(self) -> list[str]:
        """Names in the order of their end; BEGIN and COMMIT are among them."""
        return list(self._log)

    async def expect(self, *names: str) -> None:
        """Assert that exactly these were sent (the driver logs a moment after its reply), and the engine's counter
        agrees."""
        await eventually(lambda: len(self._log) >= len(names))
        assert self._log == list(names)
        assert self._now() - self._before == sum("/" in name for name in names)

    def _now(self) -> int:
        return sum(database.statements for database in self._databases)


def _name(query: str) -> str:
    return _NAMES.get(query, query.strip("; ").split()[0].upper())
