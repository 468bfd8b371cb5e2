"""A database with the machines of these tests, and callers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.doors.blocking_callers import BLOCKING
from tests.doors.callers import CALLERS, Caller, calling
from tests.doors.machines import LIMITS, Busy, Family, Note, Order, Paced


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    async with Harness([Order, Note, Busy, Family, Paced], limits=LIMITS) as harness:
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
    """Somebody's application with a transaction, once for each driver."""
    async with calling({**CALLERS, **BLOCKING}[request.param], h) as made:
        yield made


@pytest.fixture
async def sql(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    """A connection of somebody who knows SQL only."""
    connection = await asyncpg.connect(h.url)
    yield connection
    await connection.close()
