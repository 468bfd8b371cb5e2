"""A completions API for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conftest import MakeHarness
from tests.surfaces.web.api import KEYS, Api, Expense

MakeApi = Callable[..., Awaitable[Api]]


@pytest.fixture
async def make_api(make_harness: MakeHarness) -> AsyncIterator[MakeApi]:
    """Make a completions API before an engine of its own: `door = await make_door(rate=…)`."""
    async with AsyncExitStack() as stack:

        async def make(*, max_payload: int = 1024 * 1024, **options: Any) -> Api:
            api = Api(await make_harness([Expense], token_keys=KEYS, max_payload=max_payload), **options)
            stack.push_async_callback(api.client.aclose)
            return api

        yield make


@pytest.fixture
async def api(make_api: MakeApi) -> Api:
    return await make_api()
