"""Databases for the store's tests: empty, migrated, and one deep backlog for the whole session."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.testing import databases
from stepwell.embedded import EmbeddedServer, data_home
from stepwell.testing.databases.pool import database_pool
from stepwell.testing.databases.stock import SERVER_SETTINGS
from tests.store import backlog
from tests.store.cases import Sample, look
from tests.store.plans import without_autovacuum

T = TypeVar("T")


def in_own_loop(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine for a session's fixture, in a loop that no test shares."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Some database of the server under test."""
    given = os.environ.get("STEPWELL_TEST_DATABASE_URL")
    if given:
        yield given
        return
    server = EmbeddedServer(data_home() / "testing-18", settings=SERVER_SETTINGS)
    yield server.join()
    server.leave()


@pytest.fixture
async def empty_url(server_url: str) -> AsyncIterator[str]:
    """A database in which nothing was ever migrated."""
    name = f"stepwell_test_{secrets.token_hex(6)}"
    await databases.clone(server_url, "template0", name)
    yield databases.sibling(server_url, name)
    await databases.drop(server_url, name)


@pytest.fixture
async def url(server_url: str) -> AsyncIterator[str]:
    """A migrated database without rows, which another test may have used before."""
    pool = database_pool()
    taken = await pool.take()
    yield taken
    pool.give_back(taken)


@pytest.fixture
async def new_url(server_url: str) -> AsyncIterator[str]:
    """A migrated database that no test has used: its tables and indexes have no page more than they need."""
    name = f"stepwell_test_{secrets.token_hex(6)}"
    await databases.clone(server_url, await databases.ensure_template(server_url), name)
    yield databases.sibling(server_url, name)
    await databases.drop(server_url, name)


@pytest.fixture(scope="session")
def shared_url(server_url: str) -> Iterator[str]:
    """A migrated database for tests that leave nothing behind."""
    name = f"stepwell_test_{secrets.token_hex(6)}"
    in_own_loop(_migrated(server_url, name))
    yield databases.sibling(server_url, name)
    in_own_loop(databases.drop(server_url, name))


async def _migrated(server_url: str, name: str) -> None:
    await databases.clone(server_url, await databases.ensure_template(server_url), name)


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to the migrated database."""
    opened = await asyncpg.connect(url)
    yield opened
    await opened.close()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """The migrated database with a worker's settings."""
    opened = Database(url, session=WORKER)
    await opened.open()
    yield opened
    await opened.close()


@dataclass(frozen=True, slots=True)
class Deep:
    """The deep backlog: its URL, how long it took to build, and rows of it."""

    url: str
    seconds: float
    given: Sample


@pytest.fixture(scope="session")
def deep(server_url: str) -> Iterator[Deep]:
    """The deep backlog, built once and only read or rolled back."""
    name = f"stepwell_test_{secrets.token_hex(6)}"
    yield in_own_loop(_build_deep(server_url, name))
    in_own_loop(databases.drop(server_url, name))


async def _build_deep(server_url: str, name: str) -> Deep:
    await _migrated(server_url, name)
    url = databases.sibling(server_url, name)
    await without_autovacuum(url)
    clock = asyncio.get_running_loop().time
    began = clock()
    await backlog.build(url)
    await backlog.analyze(url)
    return Deep(url, clock() - began, await look(url))
