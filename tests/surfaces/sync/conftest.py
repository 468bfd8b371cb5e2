"""A database per test module, and blocking engines on it: as in a script, a Flask or a Django project."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stepwell import Engine, SyncEngine
from stepwell.testing import Harness
from tests.surfaces.sync.machines import MACHINES


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a migrated database."""
    harness = Harness()
    with asyncio.Runner() as runner:
        runner.run(harness.__aenter__())
        runner.run(harness.engine.close())
        yield harness.url
        runner.run(harness.__aexit__(None, None, None))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine that is not open; the test closes at its end what blocking calls opened."""
    made = Engine(url, machines=MACHINES)
    yield made
    made.sync.close()


@pytest.fixture
def sync(engine: Engine) -> SyncEngine:
    return engine.sync
