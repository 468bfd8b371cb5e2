"""The one place of the tests that waits for a condition without a notification."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell import Handle, Instance
from stepwell._worker.worker import Worker

T = TypeVar("T")

PATIENCE = 30.0
LOOK_EVERY = 0.01


async def eventually(condition: Callable[[], T | Awaitable[T]], patience: float = PATIENCE) -> T:
    """Check until the condition holds and return its value; fails, with the last value, when patience ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        seen = condition()
        found: T = await seen if inspect.isawaitable(seen) else seen
        if found:
            return found
        if loop.time() > deadline:
            raise AssertionError(f"not within {patience:g} s: {inspect.getsource(condition).strip()}; saw {found!r}")
        await asyncio.sleep(LOOK_EVERY)


async def held(handle: Handle, *, attempt: int = 0) -> Instance:
    """Wait until a hold stops the instance, at that attempt or a later one; returns it as it is then."""

    async def look() -> Instance | None:
        found = await handle.get()
        return found if found.hold is not None and found.attempt >= attempt else None

    found = await eventually(look)
    assert found is not None
    return found


async def draining(worker: Worker) -> None:
    """Wait until a worker that is being stopped claims nothing more."""
    await eventually(lambda: worker._graph.claimer._task is None)
