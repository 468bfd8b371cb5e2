"""Interactions with external systems, for blocking code."""

from __future__ import annotations

from typing import TypeVar

from stepwell._client.admin.interactions import Interactions
from stepwell.sync.blocking import DEFAULT_CALL, Act, Ask, CallOptions, blocking

R = TypeVar("R")


class SyncInteractions:
    """The open interactions, a single one, its token: `engine.sync.interactions`."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    pending = blocking(Interactions.pending)
    get = blocking(Interactions.get)
    token = blocking(Interactions.token)

    def _ask(self, method: str, act: Act[Interactions, R], options: CallOptions = DEFAULT_CALL) -> R:
        return self._ask_engine(f"interactions.{method}", lambda engine, left: act(engine.interactions, left), options)
