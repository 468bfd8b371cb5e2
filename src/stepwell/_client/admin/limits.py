"""Limits at run time: list them, change them without a deploy, and reset them to what the code declares."""

from __future__ import annotations

import builtins
from datetime import timedelta

from stepwell._client.call_timeout import Calls, Timeout
from stepwell._core.validation import check_text
from stepwell._notify.notifier import Notifier
from stepwell._store import limits
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.limits import LimitRow
from stepwell.errors import InvalidInput, UnknownLimit
from stepwell.limits import LimitKind, period_problem, to_period, whole_problem


class LimitOperations:
    """`engine.limits`. A change is effective at once in every worker: workers read limits with each decision."""

    def __init__(self, database: Database, notifier: Notifier, calls: Calls) -> None:
        self._database = database
        self._calls = calls
        self._notifier = notifier

    async def list(self, *, timeout: Timeout | None = None) -> builtins.list[LimitRow]:
        """Every limit by name: its current and declared values, and how many instances run and wait."""
        return await self._calls.within("limits.list", timeout, limits.list_all(self._database))

    async def set(
        self,
        name: str,
        *,
        n: int | None = None,
        per: timedelta | float | None = None,
        burst: int | None = None,
        kind: LimitKind | None = None,
        by: str | None = None,
        timeout: Timeout | None = None,
    ) -> LimitRow:
        """Change a limit; values that are not given stay. The change holds until the declaration changes, or `reset`.

        A lower limit drains: running steps continue. With n=0 a concurrency limit lets no step start. `kind` is needed
        only if a rate limit and a concurrency limit share the name.
        """
        return await self._calls.within("limits.set", timeout, self._set(name, n, per, burst, kind, by))

    async def _set(
        self, name: str, n: int | None, per: timedelta | float | None, burst: int | None, kind: LimitKind | None,
        by: str | None,
    ) -> LimitRow:  # fmt: skip
        found = await self._find(name, kind, is_rate=per is not None or burst is not None)
        _check(found, n, per, burst)
        period = None if per is None else to_period(per)
        operator = None if by is None else check_text("by", by)
        queues = await limits.change(self._database, found.kind, found.name, n, period, burst, operator or "operator")
        self._notify_changed(queues)
        return await self._find(name, found.kind)

    async def reset(
        self, name: str, *, kind: LimitKind | None = None, timeout: Timeout | None = None
    ) -> LimitRow:
        """Reset a limit to what the code declares."""
        return await self._calls.within("limits.reset", timeout, self._reset(name, kind))

    async def _reset(self, name: str, kind: LimitKind | None) -> LimitRow:
        found = await self._find(name, kind)
        self._notify_changed(await limits.reset(self._database, found.kind, found.name))
        return await self._find(name, found.kind)

    def _notify_changed(self, queues: builtins.set[str]) -> None:
        for queue in queues:
            self._notifier.notify_work(queue)
        self._notifier.publish(notifications.DUE)  # the timers serve the wait queues of rate limits

    async def _find(self, name: str, kind: LimitKind | None, *, is_rate: bool = False) -> LimitRow:
        if kind not in (None, "concurrency", "rate"):
            raise InvalidInput("kind", f"{kind!r} is neither 'concurrency' nor 'rate'")
        wanted: LimitKind | None = "rate" if kind is None and is_rate else kind
        known = await limits.list_all(self._database)
        found = [row for row in known if row.name == name and wanted in (None, row.kind)]
        if not found:
            raise UnknownLimit("name", str(name), [row.name for row in known])
        if len(found) > 1:
            raise InvalidInput("kind", f"a rate limit and a concurrency limit are called {name!r}; say which: "
                               "kind='rate' or kind='concurrency'")
        return found[0]


def _check(limit: LimitRow, n: object, per: object, burst: object) -> None:
    if n is None and per is None and burst is None:
        raise InvalidInput("n", "nothing to change; give n, per or burst")
    least = 0 if limit.kind == "concurrency" else 1
    if n is not None and (problem := whole_problem(n, least=least)):
        raise InvalidInput("n", problem)
    for field, value, found in (
        ("per", per, None if per is None else period_problem(per)),
        ("burst", burst, None if burst is None else whole_problem(burst)),
    ):
        if value is not None and limit.kind == "concurrency":
            raise InvalidInput(field, f"{limit.name!r} is a concurrency limit; it has only n")
        if found is not None:
            raise InvalidInput(field, found)
