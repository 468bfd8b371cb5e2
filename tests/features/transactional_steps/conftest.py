"""A database for tests of transactional steps, with a ledger that their steps write into."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell.testing import Harness
from tests.conftest import MakeHarness


@pytest.fixture
async def make() -> AsyncIterator[MakeHarness]:
    """An engine on a database of its own: `h = await make([Machine], **settings)`."""
    async with AsyncExitStack() as stack:

        async def enter(machines: Any, **options: Any) -> Harness:
            h = await stack.enter_async_context(Harness(machines, **options))
            await h.sql("create table public.ledger (note text unique deferrable initially immediate)")
            stack.push_async_callback(h.sql, "drop table public.ledger")  # else the database is not used again
            return h

        yield enter
