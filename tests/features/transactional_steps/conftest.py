"""One database for all tests of transactional steps of a module, with a ledger that their steps write into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.shared_database import SharedHarness, shared_database


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with shared_database() as made:
        yield made


@pytest.fixture
async def make(url: str) -> AsyncIterator[MakeHarness]:
    """An engine on the emptied database: `h = await make([Machine], **settings)`."""
    async with AsyncExitStack() as stack:

        async def enter(machines: Any, **options: Any) -> Harness:
            h = await stack.enter_async_context(SharedHarness(url, machines, **options))
            await h.sql("drop table if exists public.ledger")
            await h.sql("create table public.ledger (note text unique deferrable initially immediate)")
            return h

        yield enter
