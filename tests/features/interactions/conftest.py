"""An engine with machines that ask, and keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.looks import COMPLETERS, SECRET, PythonCompleter
from tests.features.interactions.machines import Batch, Expense


class LookingHarness(Harness):
    """Reads rows over one connection, which is cheaper than one for each read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._looking = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        async with self._looking:
            if self._connection is None:
                self._connection = await asyncpg.connect(self.url)
                self._stack.push_async_callback(self._connection.close)
            return list(await self._connection.fetch(statement, *args))


@pytest.fixture
async def make_harness() -> AsyncIterator[MakeHarness]:
    """An engine on a database of its own: `h = await make_harness([…], **settings)`."""
    async with AsyncExitStack() as stack:

        async def make(machines: Any = (), **options: Any) -> Harness:
            return await stack.enter_async_context(LookingHarness(machines, **options))

        yield make


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Expense, Batch], token_keys={"new": SECRET})


@pytest.fixture(params=COMPLETERS)
async def completer(request: pytest.FixtureRequest, h: Harness) -> PythonCompleter:
    """The way a completion comes in: Python, or SQL."""
    made: PythonCompleter = COMPLETERS[request.param](h)
    return made
