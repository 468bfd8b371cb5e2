"""The twin of an engine: the same machines and settings, opened in a loop thread of its own when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Any, TypeVar

from stepwell.engine import Engine
from stepwell.sync.stay import Stay
from stepwell.sync.thread import LoopThread

R = TypeVar("R")


class Twin:
    """One process' twin of an engine, and its thread."""

    def __init__(self, make: Callable[[], Engine], on_open: Callable[[], None]) -> None:
        self._make = make
        self._on_open = on_open
        self._engine = make()
        self._is_open = False
        self._opening = asyncio.Lock()
        self._stays: set[Stay[Any]] = set()
        self._thread = LoopThread("stepwell sync")

    def submit(self, act: Callable[[Engine], Awaitable[R]], *, opened: bool = True) -> Future[R]:
        """Begin to act on the engine: the opened one, or one that the act opens and closes itself."""
        return self._thread.submit(self._act(act, opened=opened))

    def enter(self, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> Future[tuple[Stay[R], R]]:
        """Begin to enter a context of the opened engine."""
        return self._thread.submit(self._enter(context))

    def leave(self, stay: Stay[Any]) -> Future[None]:
        """Begin to leave a context."""
        return self._thread.submit(self._leave(stay))

    def close(self) -> None:
        """Leave the contexts, close the engine, end the thread."""
        self._thread.stop(self._close())

    async def _act(self, act: Callable[[Engine], Awaitable[R]], *, opened: bool) -> R:
        if opened:
            await self._open()
        return await act(self._engine if self._is_open else self._make())

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                # A context of its own: the engine's services must not keep that of whoever calls first.
                await asyncio.create_task(self._engine.__aenter__(), context=Context())
                self._is_open = True
                self._on_open()

    async def _enter(self, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> tuple[Stay[R], R]:
        await self._open()
        stay = Stay(context(self._engine))
        entered = await stay.enter()
        self._stays.add(stay)
        return stay, entered

    async def _leave(self, stay: Stay[Any]) -> None:
        self._stays.discard(stay)
        await stay.leave()

    async def _close(self) -> None:
        try:
            for stay in tuple(self._stays):
                await self._leave(stay)
        finally:
            await self._engine.close()
