"""An async context that is entered by one call and left by another."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class HeldContext(Generic[T]):
    """Enters and leaves in one task, because what is inside (a task group, a timeout) may belong to its task."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._over = asyncio.Event()
        self._entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name="stepwell sync stay")

    async def enter(self) -> T:
        """Wait until it is entered; an interrupted wait leaves it again."""
        try:
            either: list[asyncio.Future[Any]] = [self._task, self._entered]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self._entered.done():
            await self._task  # raises what kept it from entering
        return self._entered.result()

    async def leave(self) -> None:
        """Leave, and wait until that is done."""
        self._over.set()
        await self._task

    async def _live(self) -> None:
        async with self._context as entered:
            self._entered.set_result(entered)
            await self._over.wait()
