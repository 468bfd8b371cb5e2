"""A database whose connections the test drives itself, with a machine whose answers go on by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.pipelines.streams import BROKEN
from tests.support.asked import Asked, Asker
from tests.support.shared_database import SharedHarness


@pytest.fixture
async def asked(shared_url: str) -> AsyncIterator[Asked]:
    """Two or more connections on one database: `one, other = await asked.join()`. In the end everything is counted."""
    async with SharedHarness(shared_url, [Asker]) as harness, Asked.on(harness) as asked:
        yield asked
        assert await asked.problems() == []
        assert [row["problem"] for row in await asked.sql(BROKEN)] == []
