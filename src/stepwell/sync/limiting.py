"""Limits at run time, for code that blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.engine import Engine
from stepwell.limiting import Limiting
from stepwell.sync.blocking import Ask, blocking
from stepwell.sync.relay import Relay

R = TypeVar("R")


class SyncLimiting:
    """`engine.sync.limits`: look at limits, change them, reset them."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    list = blocking(Limiting.list)
    set = blocking(Limiting.set)
    reset = blocking(Limiting.reset)

    def _ask(
        self, door: str, act: Callable[[Limiting], Awaitable[R]], *, opened: bool = True, relay: Relay | None = None
    ) -> R:
        def ask(engine: Engine) -> Awaitable[R]:
            return act(engine.limits)

        return self._ask_engine(f"limits.{door}", ask, opened=opened, relay=relay)
