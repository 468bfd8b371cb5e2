"""Transactions of steps as SQLAlchemy sessions, over the same driver. Imported only where SQLAlchemy is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakSet

import asyncpg
import greenlet as _needed  # type: ignore[import-untyped]  # noqa: F401 - without it SQLAlchemy fails when used
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from stepwell._store.connection.pool import Queryable, Row
from stepwell._store.connection.settings import CLOSE_TIMEOUT, Bounds
from stepwell._store.connection.sql_files import statement
from stepwell._store.connection.timeline import Timelines
from stepwell._store.step_transaction.connection import END_PATIENCE, Carrier, StepConnection, step_settings
from stepwell.config import SCHEMA
from stepwell.errors import TransactionBroken

_DRIVERS_OWN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class StepSession(AsyncSession):
    """The session of a step. Only the engine commits its transaction, with the outcome."""

    async def commit(self) -> NoReturn:
        raise TransactionBroken("commit() was called in the step; return an outcome instead, which commits")

    async def rollback(self) -> NoReturn:
        raise TransactionBroken("rollback() was called in the step; raise an error instead, "
                                "or use begin_nested() for a part of it")

    async def close(self) -> NoReturn:
        raise TransactionBroken("close() was called in the step; the engine closes the session after the step")

    async def reset(self) -> NoReturn:
        await self.close()

    async def invalidate(self) -> NoReturn:
        await self.close()


class Sessions:
    """A pool of transactions, each with a session of SQLAlchemy."""

    def __init__(
        self, dsn: str, most: int, bounds: Bounds = Bounds(), timelines: Timelines | None = None,  # noqa: B008 - frozen
        schema: str = SCHEMA,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.statements = 0
        self.bounds = bounds
        self.timelines = timelines
        self._dsn = dsn
        self._made: WeakSet[StepConnection] = WeakSet()
        self._lent: set[StepConnection] = set()
        self._free = asyncio.Semaphore(most)  # waits without a timeout, unlike SQLAlchemy's own pool
        self._engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=self._connect, pool_size=most, max_overflow=0
        )
        event.listen(self._engine.sync_engine, "checkout", _refuse_closed)

    async def open(self) -> None:
        """Nothing to do: the pool connects with the first step."""

    async def close(self) -> None:
        await asyncio.wait_for(self._engine.dispose(), CLOSE_TIMEOUT)

    async def acquire(self) -> Carrier:
        await self._free.acquire()
        try:
            with _unwrapped():
                connection = await self._engine.connect()
            driver: Any = (await connection.get_raw_connection()).driver_connection
        except BaseException:
            self._free.release()
            raise
        self._lent.add(driver)
        return _Session(self, connection, driver)

    def release(self, driver: Any) -> None:
        self._lent.discard(driver)
        self._free.release()

    def drop_idle(self) -> None:
        for connection in set(self._made) - self._lent:
            connection.terminate()  # the pool replaces a closed connection

    async def _connect(self) -> Any:
        settings = step_settings(self.bounds, self.schema)
        connection: StepConnection = await asyncpg.connect(
            self._dsn, connection_class=StepConnection, timeout=self.bounds.connect,
            server_settings={"application_name": settings["application_name"]},
        )  # fmt: skip
        try:
            await connection.settle(self._dsn, settings, self.bounds, self.timelines)
        except BaseException:
            connection.terminate()
            raise
        self._made.add(connection)
        return connection


class _Session:
    """A session on a connection of SQLAlchemy's pool; the session cannot end the transaction."""

    def __init__(self, owner: Sessions, connection: AsyncConnection, driver: StepConnection) -> None:
        self.ctx_connection = StepSession(
            bind=connection, expire_on_commit=False, join_transaction_mode="rollback_only"
        )
        self.connection = driver
        self._owner = owner
        self._connection = connection

    async def begin(self) -> Queryable:
        await self._connection.begin()
        return _First(self._owner, self._connection)

    async def write_out(self) -> None:
        await self.ctx_connection.flush()

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        with _unwrapped():
            await self._connection.rollback()

    async def give_back(self) -> None:
        await AsyncSession.close(self.ctx_connection)
        await self.connection.reset(timeout=END_PATIENCE)
        await self._connection.close()
        self._owner.release(self.connection)

    async def discard(self) -> None:
        try:
            self.connection.terminate()
            await AsyncSession.close(self.ctx_connection)
            await self._connection.invalidate()
            await self._connection.close()
        finally:
            self._owner.release(self.connection)


class _First:
    """Sends the first statement through SQLAlchemy, which sends its BEGIN only then."""

    def __init__(self, owner: Sessions, connection: AsyncConnection) -> None:
        self._owner = owner
        self._connection = connection

    @property
    def schema(self) -> str:
        return self._owner.schema

    async def fetch(self, name: str, *args: object) -> list[Row]:
        self._owner.statements += 1
        with _unwrapped():
            found = await self._connection.exec_driver_sql(statement(name, self._owner.schema), args)
        return list(found.mappings())  # type: ignore[arg-type]  # read by name, like a record


def _refuse_closed(adapted: Any, _record: Any, _proxy: Any) -> None:
    """Refuse a connection that the server has closed meanwhile: the pool opens another one."""
    if adapted.driver_connection.is_closed():
        raise DisconnectionError


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise the driver's errors instead of SQLAlchemy's, so that `translated` knows them."""
    try:
        yield
    except DBAPIError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _DRIVERS_OWN):
            cause = cause.__cause__
        raise cause or error from error
