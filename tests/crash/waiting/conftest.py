"""A database whose connections the test drives itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.contest import Contest, Plain
from tests.support.shared_database import SharedHarness


@pytest.fixture
async def contest(shared_url: str) -> AsyncIterator[Contest]:
    """Two or more connections on one database: `one, other = await contest.join()`."""
    async with SharedHarness(shared_url, [Plain]) as harness, Contest.on(harness) as contest:
        yield contest
