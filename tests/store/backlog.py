"""A deep, skewed backlog, built by the server itself: rows of every kind lie mixed on every page."""

from __future__ import annotations

import asyncio

import asyncpg

RUNNABLE, FUTURE, BLOCKED, TERMINAL, EXECUTING = 200_000, 100_000, 100_000, 300_000, 2_000
LIVE_WORKERS, DEAD_WORKERS = 18, 2
HOT = "hot"  # the key that everything blocked waits behind
LABELS = ["order@1", "order@2"]

_WORKERS = f"""
insert into stepwell.workers (host, boot, pid, process, release, queues, machines, lease_until, steady_since)
select 'host', 'boot', n, 'p' || n, '0', '{{}}', '{{order@1,order@2}}',
       pg_catalog.now() + case when n <= {LIVE_WORKERS} then interval '1 day' else interval '-1 hour' end,
       pg_catalog.now() - interval '1 hour'
from generate_series(1, {LIVE_WORKERS + DEAD_WORKERS}) as n
"""

# In each 702 rows: 200 runnable, 100 future, 100 blocked, 300 terminal, 2 executing; 7 and 702 share no factor,
# so that n * 7 % 702 mixes them. Future and blocked rows are the most urgent by priority: they must not be in the way.
_INSTANCES = f"""
with numbered as (
  select n, n * 7 % 702 as kind from generate_series(1, $1::integer) as n
)
insert into stepwell.instances
  (id, machine, version, step, queue, priority, due_at, created_at, updated_at, finished_at, status, hold,
   worker_id, claimed_at, concurrency_key, fence, key, key_scope)
overriding system value
select n, 'order', 1 + n % 2, 'ship',
       case when n % 100 < 60 then 'default' when n % 100 < 90 then 'mail' when n % 100 < 99 then 'bulk'
            else 'rare' end,
       case when kind < 200 then n % 10 when kind < 400 then -100 else 0 end,
       stepwell.now() + case when kind between 200 and 299 then interval '1 day' + n * interval '1 second'
                             else n * interval '-1 second' end,
       stepwell.now(), stepwell.now(), case when kind between 400 and 699 then stepwell.now() end,
       case when kind < 400 then 'runnable' when kind < 660 then 'done' when kind < 690 then 'failed'
            when kind < 700 then 'cancelled' else 'executing' end,
       case when kind between 200 and 299 then 'due' when kind between 300 and 399 then 'key' end,
       case when kind >= 700 then 1 + n % {LIVE_WORKERS + DEAD_WORKERS} end,
       case when kind >= 700 then pg_catalog.now() end,
       case when kind between 300 and 399 or kind = 700 and n < 702 then '{HOT}'
            when kind = 0 or kind = 701 then 'key ' || n end,
       n % 5,
       case when kind % 10 = 0 then 'order ' || n end,
       case when kind % 10 = 0 then 'live' end
from numbered
"""

_STATES = """
insert into stepwell.instance_data (id, state)
select n, jsonb_build_object('order', n, 'items', 'one, two, three')
from generate_series(1, $1::integer) as n
"""


async def build(url: str, rows: int = 702_000) -> None:
    """Fill an empty schema; statistics are the caller's to take, or not to. Wide rows on a second connection."""
    await asyncio.gather(
        _run(url, (_WORKERS,), (_INSTANCES, rows), ("select setval('stepwell.instances_id_seq', $1)", rows)),
        _run(url, (_STATES, rows)),
    )


async def analyze(url: str) -> None:
    await _run(url, ("analyze stepwell.instances, stepwell.instance_data, stepwell.workers",))


async def _run(url: str, *statements: tuple[object, ...]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for sql, *args in statements:
            await connection.execute(str(sql), *args)
    finally:
        await connection.close()
