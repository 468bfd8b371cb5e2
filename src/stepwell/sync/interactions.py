"""Questions to the world, for code that blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.engine import Engine
from stepwell.interactions import Interactions
from stepwell.sync.blocking import Ask, blocking
from stepwell.sync.relay import Relay

R = TypeVar("R")


class SyncInteractions:
    """What is open, and one of them: `engine.sync.interactions`."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    pending = blocking(Interactions.pending)
    get = blocking(Interactions.get)
    token = blocking(Interactions.token)

    def _ask(
        self, door: str, act: Callable[[Interactions], Awaitable[R]], *, opened: bool = True,
        relay: Relay | None = None,
    ) -> R:  # fmt: skip
        def ask(engine: Engine) -> Awaitable[R]:
            return act(engine.interactions)

        return self._ask_engine(f"interactions.{door}", ask, opened=opened, relay=relay)
