"""Reads for operators and pages, for code that blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from stepwell._core.records import Instance
from stepwell.engine import Engine
from stepwell.insights import MOST_PER_PAGE, Insights
from stepwell.sync.blocking import Ask, blocking
from stepwell.sync.relay import Relay

R = TypeVar("R")


class SyncInsights:
    """What the engine knows, without changing anything."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    list = blocking(Insights.list)
    tree = blocking(Insights.tree)
    inbox = blocking(Insights.inbox)
    workers = blocking(Insights.workers)

    def each(self, **filters: Any) -> Iterator[Instance]:
        """All instances that fit, page by page."""
        page = self.list(limit=MOST_PER_PAGE, **filters)
        yield from page.items
        while page.next is not None:
            page = self.list(limit=MOST_PER_PAGE, after=page.next, **filters)
            yield from page.items

    def _ask(
        self, door: str, act: Callable[[Insights], Awaitable[R]], *, opened: bool = True, relay: Relay | None = None
    ) -> R:
        def ask(engine: Engine) -> Awaitable[R]:
            return act(engine.insights)

        return self._ask_engine(f"insights.{door}", ask, opened=opened, relay=relay)
