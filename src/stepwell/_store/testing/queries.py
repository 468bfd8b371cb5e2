"""Queries of the test kit on its own connection: claimable rows, due times, connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from stepwell._store.connection.sql_files import rendered
from stepwell._store.connection.type_cache import LearnedConnection
from stepwell.config import SCHEMA

_NEXT = """
select i.id, i.queue, i.machine, i.step
from {schema}.instances i
where i.status = 'runnable' and i.hold is null and ($1::text[] is null or i.queue = any ($1::text[]))
  and not exists (select from {schema}.queues q where q.name = i.queue and q.paused_at is not null)
order by i.priority, i.due_at, i.id
limit 1"""

_DUE = """
select least((select min(i.due_at)
              from {schema}.instances i
              where i.status = 'runnable' and i.hold = 'due' and ($1::text[] is null or i.queue = any ($1::text[]))),
             (select min(b.next_at)
              from {schema}.buckets b
              where exists (select
                            from {schema}.instances i
                            where i.rate_limit = b.key and i.status = 'runnable' and i.hold = 'rate'
                              and i.hold_reason is null and ($1::text[] is null or i.queue = any ($1::text[])))),
             (select min(q.next_at)
              from {schema}.interactions q
              where q.status = 'waiting' and q.transport = any ($2::text[])
                and (q.deadline is null or q.deadline > q.next_at)))"""

_DEADLINES = """
select count(*), max(d.deadline)
from (select i.deadline
      from {schema}.instances i
      where i.status = 'awaiting_signal' and i.deadline is not null
      union all
      select max(q.deadline)
      from {schema}.interactions q
      where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline is not null
      group by q.instance_id) d"""

_ALIVE = """
select w.id, w.pid
from {schema}.workers w
where w.lease_until > pg_catalog.now() and not w.id = any ($1::bigint[])"""

_CUT = """
select pg_terminate_backend(a.pid)
from pg_stat_activity a
where a.datname = current_database() and a.application_name ~ '^{application} (worker|step)'"""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A row that a claim would take next."""

    id: int
    queue: str
    machine: str
    step: str


class KitQueries:
    """One connection, one query at a time; connects with the first query."""

    def __init__(self, url: str, schema: str = SCHEMA) -> None:
        self._url = url
        self._schema = schema
        self._connection: asyncpg.Connection | None = None
        self._dispatch = asyncio.Lock()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(timeout=5)

    async def next_runnable(self, queues: Sequence[str] | None) -> Runnable | None:
        """The next row in claim order, in the given queues or all."""
        rows = await self._fetch(_NEXT, queues)
        return Runnable(**rows[0]) if rows else None

    async def next_due(self, queues: Sequence[str] | None, transports: Sequence[str]) -> datetime | None:
        """The time of the next row on hold for its due time or tokens, or of the next retried sending."""
        [(due,)] = await self._fetch(_DUE, queues, list(transports))
        return due  # type: ignore[no-any-return]  # the column's type

    async def deadlines(self) -> tuple[int, datetime | None]:
        """How many parked instances have a deadline, and the latest of these."""
        [(number, latest)] = await self._fetch(_DEADLINES)
        return number, latest

    async def clock(self) -> datetime:
        """The engine's time."""
        [(now,)] = await self._fetch("select {schema}.now()")
        return now  # type: ignore[no-any-return]  # the column's type

    async def alive(self, but: Sequence[int]) -> list[tuple[int, int]]:
        """Workers with a live lease, except the given ones: id and pid."""
        return [(id_, pid) for id_, pid in await self._fetch(_ALIVE, list(but))]

    async def cut_workers(self) -> None:
        """Terminate every worker's connections on the server, as the death of its process does."""
        while await self._fetch(_CUT):  # noqa: ASYNC110 - other processes end, and only their server can tell
            await asyncio.sleep(0.002)

    async def begin_ids_at(self, first: int) -> None:
        """Continue the ids of instances from this number."""
        await self._fetch("select setval('{schema}.instances_id_seq', $1)", first)

    async def _fetch(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        async with self._dispatch:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(
                    self._url, connection_class=LearnedConnection, server_settings={"application_name": "harness"}
                )
            return list(await self._connection.fetch(rendered(sql, self._schema), *args))
