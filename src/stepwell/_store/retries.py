"""Tries again what lost a race with somebody else's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell._core.faults import Contention

T = TypeVar("T")

MOST_TRIES = 10


async def retried(act: Callable[[], Awaitable[T]]) -> T:
    """A deadlock with somebody's transaction did nothing: try again."""
    for _ in range(MOST_TRIES - 1):
        try:
            return await act()
        except Contention:
            continue
    return await act()
