"""A database whose connections the test drives itself, with machines that ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.asks.machines import Batch, Expense
from tests.support.asked import Asked, Asker
from tests.support.shared_database import SharedHarness
from tests.support.transports import Recording


@pytest.fixture
async def asked(shared_url: str) -> AsyncIterator[Asked]:
    """Two or more connections on one database, and questions: `one, other = await asked.join()`.

    Whatever a test does, in the end everything is counted, and nothing is left open that nobody waits for.
    """
    machines = [Asker, Expense, Batch]
    transports = [Recording("there")]
    async with SharedHarness(shared_url, machines, transports=transports) as harness, Asked.on(harness) as asked:
        yield asked
        assert await asked.problems() == []
