"""A database with connections that the test drives itself, and with machines that ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepwell.testing import Harness
from tests.features.interactions.machines import Batch, Expense
from tests.support.asked import Asked, Asker
from tests.support.transports import Recording


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """Two or more connections on one database, and interactions: `one, other = await asked.join()`.

    Whatever a test does, at the end everything is counted, and no interaction is open without an instance that waits
    for it.
    """
    machines = [Asker, Expense, Batch]
    transports = [Recording("there")]
    async with Harness(machines, transports=transports) as harness, Asked.on(harness) as asked:
        yield asked
        assert await asked.problems() == []
