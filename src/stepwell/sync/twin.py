"""The twin of an engine: the same machines and settings, opened in its own loop thread when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from time import monotonic
from typing import Any, TypeVar

from stepwell._client.call_timeout import Calls, Timeout, to_seconds
from stepwell.engine import Engine
from stepwell.sync.blocking import Act, CallOptions
from stepwell.sync.held_context import HeldContext
from stepwell.sync.loop_thread import LoopThread

R = TypeVar("R")


class Twin:
    """The twin of an engine in one process, and its thread."""

    def __init__(self, make: Callable[[], Engine], on_open: Callable[[], None]) -> None:
        self._make = make
        self._on_open = on_open
        self._engine = make()
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        self._held: set[HeldContext[Any]] = set()
        self._thread = LoopThread("stepwell sync")

    def open(self) -> Future[None]:
        """Start opening the engine, if it is not open."""
        return self._thread.submit(self._open())

    def submit(self, method: str, act: Act[Engine, R], options: CallOptions) -> Future[R]:
        """Start an act on the engine: the opened one, or one that the act opens and closes itself."""
        return self._thread.submit(self._act(method, act, options))

    def enter(self, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> Future[tuple[HeldContext[R], R]]:
        """Start entering a context of the opened engine."""
        return self._thread.submit(self._enter(context))

    def leave(self, held: HeldContext[Any]) -> Future[None]:
        """Start leaving a context."""
        return self._thread.submit(self._leave(held))

    def close(self) -> None:
        """Leave the contexts, close the engine, end the thread."""
        self._thread.stop(self._close())

    async def _act(self, method: str, act: Act[Engine, R], options: CallOptions) -> R:
        left = await self._open_within(method, options.timeout) if options.opened and not self._is_open else None
        return await act(self._engine if self._is_open else self._make(), left)

    async def _open_within(self, method: str, timeout: Timeout | None) -> float | None:
        """Open the engine as a part of a call; returns the seconds that are left of the call's timeout."""
        began = monotonic()
        await Calls(self._engine.settings.call_timeout).within(method, timeout, self._open())
        return None if timeout is None else max(0.0, to_seconds(timeout) - (monotonic() - began))

    async def _open(self) -> None:
        """Wait for the one opening under way, which continues when a caller's timeout has passed."""
        if self._is_open:
            return
        if self._opening is None:
            # Its own context: the engine's services must not keep the context of the first caller.
            self._opening = asyncio.create_task(self._open_engine(), name="stepwell opening", context=Context())
            self._opening.add_done_callback(self._end_opening)
        await asyncio.shield(self._opening)

    async def _open_engine(self) -> None:
        await self._engine.__aenter__()
        self._is_open = True
        self._on_open()

    def _end_opening(self, opening: asyncio.Task[None]) -> None:
        self._opening = None  # the next call tries again
        if not opening.cancelled():
            opening.exception()  # each caller that still waits raises it; if there is none, it must not be logged

    async def _enter(self, context: Callable[[Engine], AbstractAsyncContextManager[R]]) -> tuple[HeldContext[R], R]:
        await self._open()
        held = HeldContext(context(self._engine))
        entered = await held.enter()
        self._held.add(held)
        return held, entered

    async def _leave(self, held: HeldContext[Any]) -> None:
        self._held.discard(held)
        await held.leave()

    async def _close(self) -> None:
        try:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait([self._opening])
            for held in tuple(self._held):
                await self._leave(held)
        finally:
            await self._engine.close()
