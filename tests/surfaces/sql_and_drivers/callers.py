"""Callers with a transaction of their own, one per driver, all in one shape for the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from stepwell.testing import Harness


class Caller(ABC):
    """A part of an application: a connection, its transaction, and calls of the engine on it."""

    connection: Any
    reopens = False

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.url = harness.url

    async def start(self, *args: Any, **options: Any) -> Any:
        return await self.harness.engine.start(*args, connection=self.connection, **options)

    async def start_many(self, *args: Any, **options: Any) -> Any:
        return await self.harness.engine.start_many(*args, connection=self.connection, **options)

    async def signal(self, *args: Any, **options: Any) -> Any:
        return await self.harness.engine.signal(*args, connection=self.connection, **options)

    async def cancel(self, *args: Any, **options: Any) -> Any:
        return await self.harness.engine.cancel(*args, connection=self.connection, **options)

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def execute(self, sql: str) -> None:
        """The application's own work, in the same transaction."""

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def use_autocommit(self) -> None:
        """Leave the caller without a transaction, in the driver's way."""

    @abstractmethod
    async def use_isolation(self, level: str) -> None:
        """Begin a transaction of another isolation level."""


class Asyncpg(Caller):
    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)
        await self._begin()

    async def _begin(self, **how: Any) -> None:
        self._transaction = self.connection.transaction(**how)
        await self._transaction.start()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def close(self) -> None:
        await self.connection.close()

    async def use_autocommit(self) -> None:
        await self._transaction.rollback()

    async def use_isolation(self, level: str) -> None:
        await self._transaction.rollback()
        await self._begin(isolation=level.lower().replace(" ", "_"))


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self._pool.acquire()
        await self._begin()

    async def close(self) -> None:
        await self._pool.release(self.connection)
        self._pool.terminate()


class AsyncPsycopg(Caller):
    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url)

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()

    async def use_autocommit(self) -> None:
        await self.connection.set_autocommit(True)

    async def use_isolation(self, level: str) -> None:
        await self.connection.set_isolation_level(psycopg.IsolationLevel[level.replace(" ", "_")])


class AsyncAlchemy(Caller):
    """SQLAlchemy's AsyncConnection."""

    driver = "asyncpg"

    async def open(self, **options: Any) -> None:
        url = self.url.replace("postgresql://", f"postgresql+{self.driver}://")
        self._engine = create_async_engine(url, poolclass=NullPool, **options)
        self.connection = await self._made().__aenter__()

    def _made(self) -> AsyncConnection | AsyncSession:
        return self._engine.connect()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(text(sql))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()
        await self._engine.dispose()

    async def use_autocommit(self) -> None:
        await self.close()
        await self.open(isolation_level="AUTOCOMMIT")

    async def use_isolation(self, level: str) -> None:
        await self.close()
        await self.open(isolation_level=level)


class AsyncAlchemyPsycopg(AsyncAlchemy):
    driver = "psycopg"


class AsyncAlchemySession(AsyncAlchemy):
    reopens = True

    def _made(self) -> AsyncConnection | AsyncSession:
        return AsyncSession(self._engine)


class AsyncAlchemySessionPsycopg(AsyncAlchemySession):
    driver = "psycopg"


ASYNC = {
    "asyncpg": Asyncpg,
    "asyncpg-pool": AsyncpgPool,
    "psycopg-async": AsyncPsycopg,
    "sqlalchemy-async-asyncpg": AsyncAlchemy,
    "sqlalchemy-async-psycopg": AsyncAlchemyPsycopg,
    "sqlalchemy-async-session-asyncpg": AsyncAlchemySession,
    "sqlalchemy-async-session-psycopg": AsyncAlchemySessionPsycopg,
}
CALLERS: dict[str, type[Caller]] = {**ASYNC}


@asynccontextmanager
async def calling(kind: type[Caller], harness: Harness) -> AsyncIterator[Caller]:
    """A caller of that driver, open and in its transaction."""
    caller = kind(harness)
    await caller.open()
    try:
        yield caller
    finally:
        await caller.close()
