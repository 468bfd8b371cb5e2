"""Reads for operators and pages: lists with filters, page by page, and the workers."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime

from stepwell._client.call_timeout import Calls, Timeout
from stepwell._core.instance import Instance, Signal
from stepwell._core.status import Status
from stepwell._core.validation import check_at, check_text
from stepwell._store import instance_lists, signals
from stepwell._store.connection.pool import Database
from stepwell._store.instance_lists import Filter
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import WorkerRow
from stepwell.errors import InvalidInput

MOST_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Page:
    """Some instances, newest first, and the cursor of the page after them (None: this is the last)."""

    items: list[Instance]
    next: int | None


class Insights:
    """`engine.insights`: reads only, changes nothing."""

    def __init__(self, database: Database, calls: Calls) -> None:
        self._database = database
        self._calls = calls

    async def list(
        self,
        *,
        status: Status | str | Iterable[Status | str] | None = None,
        machine: str | None = None,
        version: int | None = None,
        step: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
        timeout: Timeout | None = None,
    ) -> Page:
        """Instances that match every given filter, newest first; `after` is the cursor of the page before."""
        _whole("limit", limit, MOST_PER_PAGE)
        below = None if after is None else _whole("after", after, 2**63 - 1)
        wanted = Filter(
            statuses=_statuses(status),
            machine=_text("machine", machine),
            version=None if version is None else _whole("version", version, 2**31 - 1),
            step=_text("step", step),
            queue=_text("queue", queue),
            tenant=_text("tenant", tenant),
            key=_text("key", key),
            created_from=None if created_from is None else check_at("created_from", created_from),
            created_before=None if created_before is None else check_at("created_before", created_before),
        )
        listing = instance_lists.list_page(self._database, wanted, below=below, limit=limit + 1)
        found = await self._calls.within("insights.list", timeout, listing)
        more = len(found) > limit
        return Page(found[:limit], found[limit - 1].id if more else None)

    async def each(self, **filters: object) -> AsyncIterator[Instance]:
        """All instances that match, page by page; a timeout bounds each page."""
        after: int | None = None
        while True:
            page = await self.list(after=after, limit=MOST_PER_PAGE, **filters)  # type: ignore[arg-type]  # checked by list
            for instance in page.items:
                yield instance
            if page.next is None:
                return
            after = page.next

    async def tree(self, instance_id: int, *, timeout: Timeout | None = None) -> builtins.list[tuple[Instance, int]]:
        """An instance's family, from its topmost parent down, each with its depth; empty if the id is unknown."""
        if isinstance(instance_id, bool) or not isinstance(instance_id, int):
            raise InvalidInput("instance_id", f"expected an id (int), got {instance_id!r}")
        if not 0 < instance_id < 2**63:
            return []
        return await self._calls.within("insights.tree", timeout, instance_lists.tree(self._database, instance_id))

    async def inbox(self, instance_id: int, *, timeout: Timeout | None = None) -> builtins.list[Signal]:
        """The signals that an instance has not consumed, in arrival order."""
        loading = signals.load(self._database, [instance_id])
        return builtins.list((await self._calls.within("insights.inbox", timeout, loading)).get(instance_id, ()))

    async def workers(self, *, timeout: Timeout | None = None) -> builtins.list[WorkerRow]:
        """Every registered worker, alive or not yet reaped."""
        return await self._calls.within("insights.workers", timeout, workers.list_all(self._database))


def _statuses(given: Status | str | Iterable[Status | str] | None) -> tuple[Status, ...] | None:
    if given is None:
        return None
    names = [given] if isinstance(given, str) else list(given)
    try:
        return tuple(Status(name) for name in names)
    except ValueError:
        known = ", ".join(Status)
        raise InvalidInput("status", f"{given!r} is not a status (known: {known})") from None


def _whole(field: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(field, f"{value!r} is out of range (1 to {most:,})")
    return value


def _text(field: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(field, f"expected a string, got {value!r}")
    return check_text(field, value)
