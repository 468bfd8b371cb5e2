"""A `connection=` that is no connection of the caller's transaction is refused; the error says what to pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from django.db.backends.postgresql.base import DatabaseWrapper
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from stepwell import InvalidConnection
from stepwell._store.testing import databases
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.djangos_settings import some_settings
from tests.surfaces.sql_and_drivers.machines import Order

Given = Callable[[str], Any]


def psycopg_url(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    pool = await asyncpg.create_pool(url, min_size=0)
    yield pool
    pool.terminate()


@asynccontextmanager
async def blocking_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@asynccontextmanager
async def psycopg_cursor(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as cursor:
        yield cursor


@asynccontextmanager
async def failed_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with pytest.raises(psycopg.Error):
            await connection.execute("select 1/0")
        yield connection


@asynccontextmanager
async def blocking_session(url: str) -> AsyncIterator[Any]:
    engine = sqlalchemy.create_engine(psycopg_url(url), poolclass=NullPool)
    with sqlalchemy.orm.Session(engine) as session:
        yield session


@asynccontextmanager
async def alchemy_engine(url: str) -> AsyncIterator[Any]:
    yield create_async_engine(psycopg_url(url, "asyncpg"), poolclass=NullPool)


@asynccontextmanager
async def unopened_alchemy(url: str) -> AsyncIterator[Any]:
    yield AsyncConnection(create_async_engine(psycopg_url(url, "asyncpg"), poolclass=NullPool))


@asynccontextmanager
async def djangos(url: str) -> AsyncIterator[Any]:
    with some_settings():
        yield DatabaseWrapper({"TIME_ZONE": None}, "default")


@asynccontextmanager
async def a_string(url: str) -> AsyncIterator[Any]:
    yield url


CASES = {
    "an asyncpg pool": (asyncpg_pool, r"is a pool; acquire a connection"),
    "a blocking psycopg connection": (blocking_psycopg, r"is blocking; call engine\.sync instead"),
    "a psycopg cursor": (psycopg_cursor, r"AsyncCursor is not a psycopg connection; pass the connection itself"),
    "a failed transaction": (failed_psycopg, r"its transaction has failed; roll it back first"),
    "a blocking session": (blocking_session, r"is blocking; call engine\.sync instead"),
    "an engine of SQLAlchemy": (alchemy_engine, r"AsyncEngine is neither a connection nor a session .*; open one"),
    "an AsyncConnection that is not open": (unopened_alchemy, r"is not open; use it inside `async with"),
    "Django's connection": (djangos, r"is Django's, which is blocking; call engine\.sync instead"),
    "a string": (
        a_string, r"str is not a connection that Stepwell supports; pass one of asyncpg, psycopg 3, SQLAlchemy 2"
    ),
}


@pytest.mark.parametrize("what", CASES)
async def test_an_object_that_is_no_connection_is_refused(h: Harness, what: str) -> None:
    given, words = CASES[what]

    async with given(h.url) as connection:
        with pytest.raises(InvalidConnection, match=words) as raised:
            await h.engine.start(Order, connection=connection)

    assert raised.value.field == "connection"
    assert (await h.engine.insights.list()).items == []


def in_another_loop(made: Callable[[], Awaitable[Any]]) -> tuple[Any, Callable[[], None]]:
    """Something made in a loop that runs on in another thread, and what ends that loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def make() -> Any:
        return await made()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    return asyncio.run_coroutine_threadsafe(make(), loop).result(20), end


async def test_a_connection_of_another_event_loop_is_refused(h: Harness) -> None:
    async def connect() -> Any:
        connection = await asyncpg.connect(h.url)
        await connection.execute("begin")
        return connection

    connection, end = in_another_loop(connect)

    with pytest.raises(InvalidConnection, match="belongs to another event loop"):
        await h.engine.start(Order, connection=connection)

    connection.terminate()
    end()


async def test_a_connection_without_the_schema_raises_the_drivers_own_error(h: Harness) -> None:
    """An error in the caller's database reaches the caller, as the driver raises it."""
    connection = await asyncpg.connect(databases.sibling(h.url, "postgres"))

    async with connection.transaction():
        with pytest.raises(asyncpg.InvalidSchemaNameError):
            await h.engine.start(Order, connection=connection)

    await connection.close()
