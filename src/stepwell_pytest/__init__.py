"""The pytest plugin: harnesses as fixtures, closed when the test has ended; the server is left when all have.

Its own package, as pytest imports it in every run: nothing of Stepwell is imported before a test asks for it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepwell.testing.blocking import BlockingHarness
    from stepwell.testing.fixtures import Opening

_OPENING = pytest.StashKey["Opening"]()


@pytest.fixture
def stepwell_harness(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A harness for an async test: `h = await stepwell_harness([Checkout], **settings)`; closed at the test's end.

    Works with pytest-asyncio and with the plugin of anyio.
    """
    from stepwell.testing.fixtures import Opening  # noqa: PLC0415 - only users of it pay for it

    opening = request.node.stash[_OPENING] = Opening(request.node.name)
    return opening.open


@pytest.fixture
def stepwell_blocking_harness() -> Iterator[Callable[..., BlockingHarness]]:
    """A harness for a plain test, without any await: `h = stepwell_blocking_harness([Checkout], **settings)`."""
    from stepwell.testing.blocking import BlockingHarness  # noqa: PLC0415 - only users of it pay for it

    opened: list[BlockingHarness] = []

    def make(machines: Any = (), **options: Any) -> BlockingHarness:
        opened.append(BlockingHarness(machines, **options))
        return opened[-1]

    yield make
    for harness in reversed(opened):
        harness.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let an async test close its harnesses itself: a fixture would have to know its loop."""
    opening = item.stash.get(_OPENING, None)
    if opening is None or not isinstance(item, pytest.Function):
        return
    if not inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"{item.name} is no `async def`: use stepwell_blocking_harness in it", pytrace=False)
    item.obj = _closing(item.obj, opening)


def pytest_sessionfinish() -> None:
    """Drop the kept databases, and leave the server: some runners end their processes without an exit handler."""
    pool = sys.modules.get("stepwell.testing.databases.pool")
    if pool is not None:
        pool.close_pools()


def _closing(test: Callable[..., Any], opening: Opening) -> Callable[..., Any]:
    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> Any:
        async with opening:
            return await test(*args, **kwargs)

    return closing
