"""Queues in the operator's hand, for code that blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.engine import Engine
from stepwell.queues import Queues
from stepwell.sync.blocking import Ask, blocking
from stepwell.sync.relay import Relay

R = TypeVar("R")


class SyncQueues:
    """What can be done to whole queues: `engine.sync.queues`."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    pause = blocking(Queues.pause)
    resume = blocking(Queues.resume)
    list = blocking(Queues.list)

    def _ask(
        self, door: str, act: Callable[[Queues], Awaitable[R]], *, opened: bool = True, relay: Relay | None = None
    ) -> R:
        def ask(engine: Engine) -> Awaitable[R]:
            return act(engine.queues)

        return self._ask_engine(f"queues.{door}", ask, opened=opened, relay=relay)
