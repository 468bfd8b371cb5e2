"""An engine with machines that ask, and keys for tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepwell.testing import Harness
from tests.asks.looks import DOORS, SECRET, PythonDoor
from tests.asks.machines import Batch, Expense


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    async with Harness([Expense, Batch], token_keys={"new": SECRET}) as harness:
        yield harness


@pytest.fixture(params=DOORS)
async def door(request: pytest.FixtureRequest, h: Harness) -> PythonDoor:
    """The way an answer comes in: Python, or SQL."""
    made: PythonDoor = DOORS[request.param](h)
    return made
