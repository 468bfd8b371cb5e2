"""An engine whose connections can go dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from stepwell import Engine
from tests.conftest import MakeHarness
from tests.crash.dark_connections.site import FOOTPRINTS, LEASE, Booked, Site, Slow, Walk
from tests.support.dark_proxy import dark_proxy_to


@pytest.fixture(params=["asyncpg"])
async def site(make_harness: MakeHarness, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    runs: Counter[tuple[int, str]] = Counter()
    harness = await make_harness([Walk, Booked, Slow], resources=runs)
    await harness.sql(FOOTPRINTS)
    async with (
        dark_proxy_to(harness.url) as proxy,
        Engine(
            proxy.url, machines=[Walk, Booked, Slow], resources=runs, lease=timedelta(seconds=LEASE),
            transactional_session=request.param,
        ) as engine,
    ):  # fmt: skip
        yield Site(harness, proxy, engine, runs)
