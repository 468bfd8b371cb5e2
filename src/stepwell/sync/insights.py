"""Reads for operators and pages, for blocking code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from stepwell._client.admin.insights import MOST_PER_PAGE, Insights
from stepwell._core.instance import Instance
from stepwell.sync.blocking import DEFAULT_CALL, Act, Ask, CallOptions, blocking

R = TypeVar("R")


class SyncInsights:
    """Reads that change nothing: `engine.sync.insights`."""

    def __init__(self, ask_engine: Ask) -> None:
        self._ask_engine = ask_engine

    list = blocking(Insights.list)
    tree = blocking(Insights.tree)
    inbox = blocking(Insights.inbox)
    workers = blocking(Insights.workers)

    def each(self, **filters: Any) -> Iterator[Instance]:
        """All instances that match, page by page."""
        page = self.list(limit=MOST_PER_PAGE, **filters)
        yield from page.items
        while page.next is not None:
            page = self.list(limit=MOST_PER_PAGE, after=page.next, **filters)
            yield from page.items

    def _ask(self, method: str, act: Act[Insights, R], options: CallOptions = DEFAULT_CALL) -> R:
        return self._ask_engine(f"insights.{method}", lambda engine, left: act(engine.insights, left), options)
