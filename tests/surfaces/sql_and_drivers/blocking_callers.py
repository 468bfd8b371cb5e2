"""Callers with blocking code, one per driver: they call `engine.sync` from a thread without a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.surfaces.sql_and_drivers.callers import Caller


class BlockingCaller(Caller):
    """What a caller does, in threads; the rest is left to a driver."""

    async def start(self, *args: Any, **options: Any) -> Any:
        return await self._call("start", *args, **options)

    async def start_many(self, *args: Any, **options: Any) -> Any:
        return await self._call("start_many", *args, **options)

    async def signal(self, *args: Any, **options: Any) -> Any:
        return await self._call("signal", *args, **options)

    async def cancel(self, *args: Any, **options: Any) -> Any:
        return await self._call("cancel", *args, **options)

    async def _call(self, door: str, *args: Any, **options: Any) -> Any:
        call = getattr(self.harness.engine.sync, door)
        return await asyncio.to_thread(call, *args, connection=self.connection, **options)

    async def commit(self) -> None:
        await asyncio.to_thread(self.connection.commit)

    async def rollback(self) -> None:
        await asyncio.to_thread(self.connection.rollback)

    async def close(self) -> None:
        await asyncio.to_thread(self.connection.close)
        await asyncio.to_thread(self.harness.engine.sync.close)


class Psycopg(BlockingCaller):
    async def open(self) -> None:
        self.connection = await asyncio.to_thread(psycopg.connect, self.url)

    async def execute(self, sql: str) -> None:
        await asyncio.to_thread(self.connection.execute, sql)

    async def use_autocommit(self) -> None:
        self.connection.autocommit = True

    async def use_isolation(self, level: str) -> None:
        self.connection.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]


class Alchemy(BlockingCaller):
    """SQLAlchemy's Connection, over psycopg."""

    async def open(self, **options: Any) -> None:
        url = self.url.replace("postgresql://", "postgresql+psycopg://")
        self._engine = create_engine(url, poolclass=NullPool, **options)
        self.connection = await asyncio.to_thread(self._made)

    def _made(self) -> Connection | Session:
        return self._engine.connect()

    async def execute(self, sql: str) -> None:
        await asyncio.to_thread(self.connection.execute, text(sql))

    async def use_autocommit(self) -> None:
        await self.close()
        await self.open(isolation_level="AUTOCOMMIT")

    async def use_isolation(self, level: str) -> None:
        await self.close()
        await self.open(isolation_level=level)


class AlchemySession(Alchemy):
    reopens = True

    def _made(self) -> Connection | Session:
        return Session(self._engine)


BLOCKING: dict[str, type[Caller]] = {
    "psycopg": Psycopg,
    "sqlalchemy": Alchemy,
    "sqlalchemy-session": AlchemySession,
}
