"""How long a run makes no progress, and how long it takes until all due work progresses again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import asyncpg

from tests.chaos.replicas import POSITION, Replicas
from tests.chaos.standing import describe

DEFINITION = (
    "recovery: from the fault's end (or its beginning, for faults that one worker less must not show) until a\n"
    "transactional step has committed, and every instance that executed or was due at that moment has moved.\n"
    "workers: from the same moment until each worker process that is to run has committed a transactional step.\n"
    "at most: what recovery and workers may take, as the settings of the workers and the machine make it.\n"
    "still: the longest time without a commit between the fault's beginning and the recovery."
)
SAMPLE = f"select coalesce((select max(number) from public.ledger), 0) as commits, p.position from ({POSITION}) p"
EVERY = 0.05
LOOK = 0.1
_DUE = """
select id, fence, status || coalesce(hold, '') || step || attempt || '/' || visit as place from stepwell.instances
where status = 'executing' or status = 'runnable' and hold is null and due_at <= stepwell.now()
"""
_UNMOVED = """
select i.id from unnest($1::bigint[], $2::bigint[], $3::text[]) p(id, fence, place)
join stepwell.instances i using (id)
where i.fence = p.fence and i.status || coalesce(i.hold, '') || i.step || i.attempt || '/' || i.visit = p.place
"""

_LATEST = "select coalesce(max(number), 0) as number from public.ledger"
_AT_WORK = "select distinct worker from public.ledger where number > $1 and worker is not null"


@dataclass(frozen=True)
class Recovery:
    first_commit: float | None
    seconds: float | None  # None: not within the patience
    standstill: float
    unmoved: int = 0
    details: tuple[str, ...] = ()  # what the database says of the rows that did not move
    workers: float | None = 0.0  # until each of them worked; None: not within the patience
    at_most: float = inf  # what both may take

    def problems(self, name: str) -> list[str]:
        """What took longer than it may."""
        times = {"the recovery": self.seconds, "until each worker worked": self.workers}
        return [f"{name}: {what} took {seconds:.1f} s, {self.at_most:.1f} s may" for what, seconds in times.items()
                if seconds is not None and seconds > self.at_most]  # fmt: skip


class Watch:
    """Polls the primary: how many ledger rows are committed, and how far its log is."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._positions: list[tuple[float, int]] = []  # when asked, and how far the log was
        self._changes: list[float] = []  # when there were more rows
        self._connection: Any = None
        self._server: Any = None
        self.commits = 0

    async def run(self) -> None:
        while True:
            try:
                await self._sample()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                self._drop()
            await asyncio.sleep(EVERY)

    async def _sample(self) -> None:
        server = self._replicas.primary
        if self._connection is None or server is not self._server:
            self._drop()
            self._connection, self._server = await server.connect(2), server
        asked = time.monotonic()
        row = await self._connection.fetchrow(SAMPLE, timeout=2)
        self._positions.append((asked, row["position"]))
        if row["commits"] != self.commits:
            self.commits = row["commits"]
            self._changes.append(time.monotonic())

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.terminate()
        self._connection = None

    def sure_until(self, position: int) -> float:
        """Everything confirmed up to this time is in the log before that position."""
        return max((asked for asked, found in self._positions if found <= position), default=0.0)

    def standstill(self, since: float, until: float) -> float:
        """The longest time without a new row between two moments."""
        moments = [since, *(at for at in self._changes if since < at < until), until]
        return max(b - a for a, b in pairwise(moments))

    async def all_work(self, at_work: Callable[[], set[int]], since: float, patience: float) -> float | None:
        """Wait until each of these processes has committed a transactional step; returns how long that took."""
        mark: int | None = None
        missing: set[int] = set()
        while time.monotonic() - since < patience:
            with contextlib.suppress(Exception):  # the server may be away: it is asked again
                if mark is None:
                    [row] = await self._replicas.primary.query(_LATEST, timeout=5)
                    mark = int(row["number"])
                rows = await self._replicas.primary.query(_AT_WORK, mark, timeout=5)
                missing = at_work() - {row["worker"] for row in rows}
                if not missing:
                    return time.monotonic() - since
            await asyncio.sleep(LOOK)
        return None

    async def recovered(self, begun: float, since: float, patience: float) -> Recovery:
        """Wait until the run has recovered, counted from `since`."""
        due: list[Any] | None = None
        first = None
        unmoved: list[int] | None = None
        while time.monotonic() - since < patience:
            with contextlib.suppress(Exception):  # the server may be away: it is asked again
                if due is None:
                    due = await self._replicas.primary.query(_DUE, timeout=5)
                places = [[row[name] for row in due] for name in ("id", "fence", "place")]
                unmoved = [row["id"] for row in await self._replicas.primary.query(_UNMOVED, *places, timeout=5)]
            if first is None and self._changes and self._changes[-1] > since:
                first = next(at for at in self._changes if at > since) - since
            if first is not None and unmoved == []:
                now = time.monotonic()
                return Recovery(first, now - since, self.standstill(begun, now))
            await asyncio.sleep(LOOK)
        standstill = self.standstill(begun, time.monotonic())
        try:
            details = await describe(self._replicas.primary, unmoved or [])
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            details = [f"no details: {error!r}"]
        return Recovery(first, None, standstill, len(unmoved or []), tuple(details))
