"""Rows of a kind, by the million, made by the server itself: an INSERT from generate_series, wide rows beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg

from benchmarks.growth.site import MACHINE, QUEUE, STEP

CHUNK = 250_000

_INSTANCES = """
insert into stepwell.instances
  (id, machine, version, step, queue, priority, due_at, created_at, updated_at, status, hold, worker_id, claimed_at,
   concurrency_key, concurrency_limit, rate_limit, awaits, finished_at, fence)
overriding system value
select n, '{machine}', 1, '{step}', '{queue}', {priority}, stepwell.now() + {due}, stepwell.now(), stepwell.now(),
       '{status}', {hold}, {worker}, {claimed}, {key}, {limit}, {rate}, {awaits}, {finished}, {fence}
from generate_series($1::bigint, $2::bigint) as n
"""
_STATES = """
insert into stepwell.instance_data (id, state, result)
select n, jsonb_build_object('order', n, 'items', 'one, two, three'), {result}
from generate_series($1::bigint, $2::bigint) as n
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """The rows of a fill, in SQL."""

    status: str = "runnable"
    priority: int = 0
    due: str = "interval '0'"
    hold: str = "null"
    worker: str = "null"
    key: str = "null"
    limit: str = "null"
    rate: str = "null"
    queue: str = QUEUE
    awaits: str = "null"

    def sql(self) -> tuple[str, str]:
        """The INSERT of the hot rows, and that of the wide ones."""
        ended = self.status == "done"
        hot = _INSTANCES.format(
            machine=MACHINE, step=STEP, queue=self.queue, status=self.status, priority=self.priority, due=self.due,
            hold=self.hold, worker=self.worker, key=self.key, limit=self.limit, rate=self.rate, awaits=self.awaits,
            claimed="null" if self.worker == "null" else "pg_catalog.now()",
            finished="stepwell.now()" if ended else "null", fence=2 if ended else 0,
        )  # fmt: skip
        return hot, _STATES.format(result="'{}'" if ended else "null")


async def fill(url: str, kind: Kind, rows: int) -> None:
    """Add rows of a kind to a site's database."""
    connection = await asyncpg.connect(url)
    try:
        first = 1 + int(await connection.fetchval("select coalesce(max(id), 0) from stepwell.instances"))
        last = first + rows - 1
        await connection.fetchval("select setval('stepwell.instances_id_seq', $1)", last)
    finally:
        await connection.close()
    await asyncio.gather(*(_insert(url, sql, first, last) for sql in kind.sql()))


async def _insert(url: str, sql: str, first: int, last: int) -> None:
    connection = await asyncpg.connect(url, command_timeout=None)
    try:
        for begin in range(first, last + 1, CHUNK):
            await connection.execute(sql, begin, min(begin + CHUNK - 1, last))
    finally:
        await connection.close()
