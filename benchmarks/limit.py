"""The limit: what Postgres itself does for a bare asyncpg loop, over a schema that is not ours.

Frozen. Every ratio that was ever published divides by these figures, so that a change here makes them incomparable:
our own schema and statements may change and must not lower the bar. The table and its indexes are those of the seed
(one table for the whole of an instance); the loop claims batches of 200 and commits them as done, the claim of one
batch beside the commit of the one before, on two connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Final

import asyncpg

BATCH: Final = 200
TASKS: Final = 10
CHUNK: Final = 5_000  # rows of one multi-row INSERT
WORKER: Final = "limit"

SCHEMA: Final = """
create type durable_status as enum
  ('runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed');

create table gen_durable (
  id bigint generated always as identity primary key,
  fsm text not null,
  fsm_version int not null default 1,
  step text not null,
  status durable_status not null default 'runnable',
  state jsonb not null default '{}',
  result jsonb,
  awaits text[],
  queue text not null default 'default',
  priority smallint not null default 0,
  partition_key text,
  eligible_at timestamptz not null default now(),
  attempt int not null default 0,
  last_error text,
  locked_by text,
  lease_expires_at timestamptz,
  parent_id bigint references gen_durable (id) on delete set null,
  children_pending int not null default 0,
  correlation_key text,
  correlation_scope durable_status[] not null default '{}',
  correlation_guard text generated always as (
    case when correlation_key is not null and status = any (correlation_scope) then correlation_key end
  ) stored,
  inserted_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

create index gen_durable_pick on gen_durable (queue, priority, eligible_at) where status = 'runnable';
create index gen_durable_lease on gen_durable (lease_expires_at) where status = 'executing';
create unique index gen_durable_correlation on gen_durable (correlation_guard) where correlation_guard is not null;
create index gen_durable_parent on gen_durable (parent_id) where parent_id is not null;
"""

INSERT: Final = """
insert into gen_durable (fsm, fsm_version, step, queue, priority, state)
values ($1, $2, $3, $4, $5, $6::text::jsonb)
returning id
"""

INSERT_MANY: Final = """
insert into gen_durable (fsm, fsm_version, step, queue, priority, state)
select fsm, fsm_version, step, queue, priority, state::jsonb
from unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::smallint[], $6::text[])
     as e(fsm, fsm_version, step, queue, priority, state)
returning id
"""

CLAIM: Final = """
with picked as (
  select id
  from gen_durable
  where status = 'runnable' and eligible_at <= now() and queue = $1
  order by priority, eligible_at
  limit $2
  for no key update skip locked
)
update gen_durable g
set status = 'executing', locked_by = $3, lease_expires_at = now() + interval '60 seconds', updated_at = now()
from picked
where g.id = picked.id
returning g.id, g.fsm, g.fsm_version, g.step, g.state, g.attempt, g.partition_key
"""

# Only `locked_by` selects the row: with the status beside it, the planner uses the index of leases.
COMMIT: Final = """
update gen_durable g
set result = o.result::jsonb, status = 'done', awaits = null, locked_by = null, lease_expires_at = null,
    updated_at = now()
from unnest($1::bigint[], $2::text[]) as o(id, result)
where g.id = o.id and g.locked_by = $3
"""

ROW: Final = ("benchmark", 1, "start", "default", 0)

# The best plan for each statement at any size, planned once: every row by its primary key, the backlog by its index.
SESSION: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


async def create(url: str) -> None:
    """Make the table in an empty database."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(SCHEMA)
    finally:
        await connection.close()


async def drain(url: str, rows: int, state: str, settle: Callable[[], Awaitable[None]]) -> float:
    """Steps per second: claim and commit a backlog of rows."""
    await insert_many(url, rows, state)
    await settle()
    async with _Connections(url, 2) as (claimer, committer):
        began = perf_counter()
        batches: asyncio.Queue[list[int]] = asyncio.Queue(maxsize=2)
        claiming = asyncio.create_task(_claim_all(claimer, batches))
        while ids := await batches.get():
            await committer.execute(COMMIT, ids, ["{}"] * len(ids), WORKER)
        await claiming
        elapsed = perf_counter() - began
        done = await claimer.fetchval("select count(*) from gen_durable where status = 'done'")
    if done != rows:
        raise RuntimeError(f"{done} of {rows} rows are done")
    return rows / elapsed


async def _claim_all(claimer: asyncpg.Connection, batches: asyncio.Queue[list[int]]) -> None:
    """Claim until no row is left; an empty batch ends the queue."""
    ids = [0]
    while ids:
        ids = [row["id"] for row in await claimer.fetch(CLAIM, ROW[3], BATCH, WORKER)]
        await batches.put(ids)


async def insert(url: str, rows: int, state: str) -> float:
    """Rows per second: one INSERT each, committed, from 10 tasks with a connection each."""
    async with _Connections(url, TASKS) as connections:

        async def insert_some(connection: asyncpg.Connection) -> None:
            for _ in range(rows // TASKS):
                await connection.fetchval(INSERT, *ROW, state)

        began = perf_counter()
        await asyncio.gather(*(insert_some(connection) for connection in connections))
        return rows // TASKS * TASKS / (perf_counter() - began)


async def insert_many(url: str, rows: int, state: str) -> float:
    """Rows per second: multi-row INSERTs in one transaction."""
    async with _Connections(url, 1) as [connection]:
        began = perf_counter()
        async with connection.transaction():
            for first in range(0, rows, CHUNK):
                number = min(CHUNK, rows - first)
                await connection.fetch(INSERT_MANY, *([value] * number for value in (*ROW, state)))
        return rows / (perf_counter() - began)


class _Connections:
    """Open connections, closed at the end of the block."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._number = number
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> list[asyncpg.Connection]:
        opened = []
        for _ in range(self._number):
            connection = await asyncpg.connect(self._url, server_settings=SESSION)
            self._stack.push_async_callback(connection.close)
            opened.append(connection)
        return opened

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
