"""Limits at run time, for blocking code."""

from __future__ import annotations

from typing import TypeVar

from stepwell._client.admin.limits import LimitOperations
from stepwell.sync.blocking import DEFAULT_CALL, Act, Ask, CallOptions, blocking

R = TypeVar("R")


class SyncLimitOperations:
    """`engine.sync.limits`: list limits, change them, reset them."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    list = blocking(LimitOperations.list)
    set = blocking(LimitOperations.set)
    reset = blocking(LimitOperations.reset)

    def _ask(self, method: str, act: Act[LimitOperations, R], options: CallOptions = DEFAULT_CALL) -> R:
        return self._ask_engine(f"limits.{method}", lambda engine, left: act(engine.limits, left), options)
