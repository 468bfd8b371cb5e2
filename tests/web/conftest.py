"""A door for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conftest import MakeHarness
from tests.web.door import KEYS, Door, Expense

MakeDoor = Callable[..., Awaitable[Door]]


@pytest.fixture
async def make_door(make_harness: MakeHarness) -> AsyncIterator[MakeDoor]:
    """Make a door before an engine of its own: `door = await make_door(rate=…)`."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> Door:
            door = Door(await make_harness([Expense], token_keys=KEYS), **options)
            stack.push_async_callback(door.client.aclose)
            return door

        yield make


@pytest.fixture
async def door(make_door: MakeDoor) -> Door:
    return await make_door()
