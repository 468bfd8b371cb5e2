"""One database for all tests of a module that run pipelines over streams, emptied for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from stepwell.testing import Harness
from tests.features.interactions.conftest import LookingHarness
from tests.features.pipelines.streams import BROKEN, PIPELINES, seen
from tests.support import asked
from tests.support.shared_database import shared_database
from tests.support.transports import Recording


@pytest.fixture(scope="module")
def streams_url() -> Iterator[str]:
    with shared_database() as made:
        yield made


@pytest.fixture
def there() -> Recording:
    """The sent interactions of the pipelines that have a transport."""
    return Recording("there")


@pytest.fixture
async def h(streams_url: str, there: Recording) -> AsyncIterator[Harness]:
    """An engine with the pipelines of `streams`; at the end, nothing is open without a waiting instance."""
    seen.forget()
    machines = [pipeline.machine for pipeline in PIPELINES]
    async with LookingHarness(streams_url, machines, transports=[there]) as harness:
        yield harness
        assert [row["problem"] for row in await harness.sql(f"{asked.BROKEN} union all {BROKEN}")] == []
