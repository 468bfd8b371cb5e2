"""Retries after a Contention: a lost race with another transaction, or a lock timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TypeVar

from stepwell._core.store_errors import Contention

T = TypeVar("T")
Item = TypeVar("Item")

MOST_TRIES = 10


async def retried(act: Callable[[], Awaitable[T]]) -> T:
    """Await `act()`; on a Contention, such as a deadlock, nothing was written: repeat it, MOST_TRIES times in all."""
    for _ in range(MOST_TRIES - 1):
        try:
            return await act()
        except Contention:
            continue
    return await act()


async def by_halves(
    act: Callable[[Sequence[Item]], Awaitable[T]], items: Sequence[Item], *, patience: float = inf
) -> tuple[list[T], list[Item]]:
    """Call `act` with all items; on a Contention, with each half of them. Returns the results, and the items that are
    left because another transaction has locked them, or because `patience` seconds have passed."""
    loop = asyncio.get_running_loop()
    answers: list[T] = []
    left: list[Item] = []
    until, parts = loop.time() + patience, [items]
    while parts:
        part = parts.pop()
        if not part:
            continue
        if left and loop.time() > until:
            left += part
            continue
        try:
            answers.append(await act(part))
        except Contention:
            middle = len(part) // 2
            if middle and loop.time() <= until:
                parts += [part[middle:], part[:middle]]
            else:
                left += part
    return answers, left
