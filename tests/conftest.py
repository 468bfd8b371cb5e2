"""What every test may use: a Postgres for the session, a harness per test."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell.embedded import EmbeddedServer, data_home
from stepwell.testing import Harness
from stepwell.testing.databases.pool import close_pools
from stepwell.testing.databases.stock import SERVER_SETTINGS
from tests.support.budgets import Budgets

MakeHarness = Callable[..., Awaitable[Harness]]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist, the process that gathers all reports
        config.pluginmanager.register(Budgets(), "budgets")


@pytest.fixture(scope="session", autouse=True)
def _server() -> Iterator[None]:
    """Keep the embedded server up for the whole session; every harness joins and leaves it."""
    if os.environ.get("STEPWELL_TEST_DATABASE_URL"):
        yield
        close_pools()
        return
    with EmbeddedServer(data_home() / "testing-18", settings=SERVER_SETTINGS):
        yield
        close_pools()


@pytest.fixture(autouse=True)
def _audible() -> Iterator[None]:
    """A test that leaves our log silent is at fault itself, not the one after it that listens in vain."""
    yield
    log = logging.getLogger("stepwell")
    assert (log.level, log.disabled, log.propagate) == (logging.NOTSET, False, True)


@pytest.fixture
async def make_harness() -> AsyncIterator[MakeHarness]:
    """Make an engine on a database of its own: `h = await make_harness(machines=[…], **settings)`."""
    async with AsyncExitStack() as stack:

        async def make(machines: Any = (), **options: Any) -> Harness:
            return await stack.enter_async_context(Harness(machines, **options))

        yield make
