"""Limits at run time: look at them, change them without a deploy, and let them be again as the code declares them."""

from __future__ import annotations

import builtins
from datetime import timedelta

from stepwell._core.ranges import check_text
from stepwell._runtime.notifier import Notifier
from stepwell._store import limits
from stepwell._store.database import Database
from stepwell._store.limits import LimitRow
from stepwell.errors import InvalidInput, UnknownLimit
from stepwell.limits import LimitKind, period_problem, to_period, whole_problem


class Limiting:
    """`engine.limits`. What is changed counts at once, in every worker: they read it with each decision."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier

    async def list(self) -> builtins.list[LimitRow]:
        """Every limit by name: as it is, as it was declared, and how many run and wait behind it."""
        return await limits.list_all(self._database)

    async def set(
        self,
        name: str,
        *,
        n: int | None = None,
        per: timedelta | float | None = None,
        burst: int | None = None,
        kind: LimitKind | None = None,
        by: str | None = None,
    ) -> LimitRow:
        """Change a limit; what is not given stays. It holds until its declaration changes, or `reset`.

        A lower limit drains: what runs goes on. With n=0 a concurrency limit lets nothing begin. `kind` is needed only
        where a rate and a concurrency limit share the name.
        """
        found = await self._find(name, kind, is_rate=per is not None or burst is not None)
        _check(found, n, per, burst)
        period = None if per is None else to_period(per)
        who = None if by is None else check_text("by", by)
        queues = await limits.change(self._database, found.kind, found.name, n, period, burst, who or "operator")
        self._tell(queues)
        return await self._find(name, found.kind)

    async def reset(self, name: str, *, kind: LimitKind | None = None) -> LimitRow:
        """Let a limit be as the code declares it."""
        found = await self._find(name, kind)
        self._tell(await limits.reset(self._database, found.kind, found.name))
        return await self._find(name, found.kind)

    def _tell(self, queues: builtins.set[str]) -> None:
        for queue in queues:
            self._notifier.announce_work(queue)
        self._notifier.announce_due()  # the timers look after lines of tokens

    async def _find(self, name: str, kind: LimitKind | None, *, is_rate: bool = False) -> LimitRow:
        if kind not in (None, "concurrency", "rate"):
            raise InvalidInput("kind", f"{kind!r} is neither 'concurrency' nor 'rate'")
        wanted: LimitKind | None = "rate" if kind is None and is_rate else kind
        known = await self.list()
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
