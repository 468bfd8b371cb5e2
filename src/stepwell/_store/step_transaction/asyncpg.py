"""Transactions of steps on the driver's own connections."""

from __future__ import annotations

from typing import Any

import asyncpg

from stepwell._store.connection.pool import Queryable, Session
from stepwell._store.connection.settings import Bounds, close_pool, drop_idle, open_pool
from stepwell._store.connection.timeline import Timelines
from stepwell._store.step_transaction.connection import END_PATIENCE, Carrier, StepConnection, step_settings
from stepwell.config import SCHEMA
from stepwell.errors import EngineClosed


class Connections:
    """A pool of transactions in which steps receive the driver's own connections."""

    def __init__(
        self, dsn: str, most: int, bounds: Bounds = Bounds(), timelines: Timelines | None = None,  # noqa: B008 - frozen
        schema: str = SCHEMA,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.statements = 0
        self.bounds = bounds
        self.timelines = timelines
        self._dsn = dsn
        self._most = most
        self.pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        """Open the pool; it connects with the first step."""
        self.pool = await open_pool(
            self._dsn, StepConnection, self._most, step_settings(self.bounds, self.schema), self.bounds, answer=None,
            timelines=self.timelines,
        )  # fmt: skip

    async def close(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            await close_pool(pool)

    def drop_idle(self) -> None:
        if self.pool is not None:
            drop_idle(self.pool)

    async def acquire(self) -> Carrier:
        if self.pool is None:
            raise EngineClosed
        return _Borrowed(self, self.pool, await self.pool.acquire())


class _Borrowed:
    """A connection of an asyncpg pool."""

    def __init__(self, owner: Connections, pool: asyncpg.Pool, lent: Any) -> None:
        self.ctx_connection = lent
        self.connection: StepConnection = lent.bare
        self._owner = owner
        self._pool = pool
        self._transaction = self.connection.transaction()

    async def begin(self) -> Queryable:
        await self._transaction.start()
        self.connection.is_lent = True
        return Session(self.connection, self._owner)

    async def write_out(self) -> None:
        """Take the connection back; the driver has no pending writes."""
        self.connection.is_lent = False

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        self.connection.is_lent = False
        await self._transaction.rollback()

    async def give_back(self) -> None:
        self.connection.is_lent = False
        if self.connection.is_altered:
            await self.connection.close(timeout=END_PATIENCE)
        await self._pool.release(self.ctx_connection, timeout=END_PATIENCE)

    async def discard(self) -> None:
        self.connection.is_lent = False
        self.connection.terminate()
        await self._pool.release(self.ctx_connection)
