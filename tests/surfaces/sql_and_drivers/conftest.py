"""A database with the machines of these tests, and callers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.blocking_callers import BLOCKING
from tests.surfaces.sql_and_drivers.callers import CALLERS, Caller, calling
from tests.surfaces.sql_and_drivers.machines import LIMITS, Asking, Busy, Family, Note, Order, Paced


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    async with Harness([Order, Note, Asking, Busy, Family, Paced], limits=LIMITS) as harness:
        await harness.engine.migrate()
        yield harness


@pytest.fixture
async def connection(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    """A caller's connection, of asyncpg."""
    made = await asyncpg.connect(h.url)
    yield made
    await made.close()


@pytest.fixture(params=[*CALLERS, *BLOCKING])
async def caller(request: pytest.FixtureRequest, h: Harness) -> AsyncIterator[Caller]:
    """An application with a transaction, once for each driver."""
    async with calling({**CALLERS, **BLOCKING}[request.param], h) as made:
        yield made


@pytest.fixture
async def sql(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    """A connection for plain SQL."""
    connection = await asyncpg.connect(h.url)
    yield connection
    await connection.close()
