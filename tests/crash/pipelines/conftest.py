"""A database with connections that the test drives itself, and a machine with continuations."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepwell.testing import Harness
from tests.features.pipelines.streams import BROKEN
from tests.support.asked import Asked, Asker


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """Two or more connections on one database: `one, other = await asked.join()`. At the end everything is counted."""
    async with Harness([Asker]) as harness, Asked.on(harness) as asked:
        yield asked
        assert await asked.problems() == []
        assert [row["problem"] for row in await asked.sql(BROKEN)] == []
