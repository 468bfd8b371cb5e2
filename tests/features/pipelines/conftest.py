"""An engine with pipelines that run over streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepwell.testing import Harness
from tests.features.interactions.conftest import LookingHarness
from tests.features.pipelines.streams import BROKEN, PIPELINES, seen
from tests.support import asked
from tests.support.transports import Recording


@pytest.fixture
def there() -> Recording:
    """The sent interactions of the pipelines that have a transport."""
    return Recording("there")


@pytest.fixture
async def h(there: Recording) -> AsyncIterator[Harness]:
    """An engine with the pipelines of `streams`; at the end, nothing is open without a waiting instance."""
    seen.forget()
    machines = [pipeline.machine for pipeline in PIPELINES]
    async with LookingHarness(machines, transports=[there]) as harness:
        yield harness
        assert [row["problem"] for row in await harness.sql(f"{asked.BROKEN} union all {BROKEN}")] == []
