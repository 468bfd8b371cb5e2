"""Pauses of queues, for blocking code."""

from __future__ import annotations

from typing import TypeVar

from stepwell._client.admin.queues import Queues
from stepwell.sync.blocking import DEFAULT_CALL, Act, Ask, CallOptions, blocking

R = TypeVar("R")


class SyncQueues:
    """Pause and resume queues: `engine.sync.queues`."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    pause = blocking(Queues.pause)
    resume = blocking(Queues.resume)
    list = blocking(Queues.list)

    def _ask(self, method: str, act: Act[Queues, R], options: CallOptions = DEFAULT_CALL) -> R:
        return self._ask_engine(f"queues.{method}", lambda engine, left: act(engine.queues, left), options)
