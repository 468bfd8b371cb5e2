"""A deep, skewed backlog, built by the server itself: rows of every kind are mixed on every page."""

from __future__ import annotations

import asyncio
import os

import asyncpg

DEPTH = int(os.environ.get("STEPWELL_DEPTH", "1"))  # 10 for `make depth`; a scan differs from an index at any of them
RUNNABLE, FUTURE, BLOCKED, TERMINAL, EXECUTING, PARKED = (
    DEPTH * rows for rows in (20_000, 10_000, 10_000, 30_000, 200, 5_000)
)
ROWS = RUNNABLE + FUTURE + BLOCKED + TERMINAL + EXECUTING + PARKED
LIVE_WORKERS, DEAD_WORKERS = 18, 2
HOT = "hot"  # the key, the limit and the rate that all blocked rows wait for
TABLES = ("instances", "instance_data", "signals", "tombstones", "workers", "machines")
LABELS = ["order@1", "order@2"]

_WORKERS = f"""
insert into stepwell.workers
  (id, host, boot, pid, process, release, queues, machines, lease_until, steady_since, beat_at)
select n, 'host', 'boot', n, 'p' || n, '0', '{{}}', '{{order@1,order@2}}',
       pg_catalog.now() + case when n <= {LIVE_WORKERS} then interval '1 day' else interval '-1 hour' end,
       pg_catalog.now() - interval '1 hour', pg_catalog.now() + interval '1 hour'
from generate_series(1, {LIVE_WORKERS + DEAD_WORKERS}) as n
"""

# In each 752 rows: 200 runnable, 100 future, 40 behind a key, 30 behind a limit and 30 behind a rate, 300 terminal, 2
# executing, 50 parked until tomorrow, 10 of those never signalled; 7 and 752 share no factor, so that n * 7 % 752 mixes
# them. The executing rows at 100, 852, 1604, … have ten ended children each; one ended row of each 752 is older than
# its machine's retention, and was a child of one that ended as well.
# Future and blocked rows are the most urgent by priority: they must not slow the claim.
_INSTANCES = f"""
with numbered as (
  select n, n * 7 % 752 as kind from generate_series(1, $1::integer) as n
)
insert into stepwell.instances
  (id, machine, version, step, queue, priority, due_at, created_at, updated_at, finished_at, status, hold,
   worker_id, claimed_at, concurrency_key, fence, key, key_scope, awaits, deadline,
   has_inbox, parent_id, parent_round, child_index, concurrency_limit, slot, rate_limit)
overriding system value
select n, 'order', 1 + n % 2, 'ship',
       case when n % 100 < 60 then 'default' when n % 100 < 90 then 'mail' when n % 100 < 99 then 'bulk'
            else 'rare' end,
       case when kind < 200 then n % 10 when kind < 400 then -100 else 0 end,
       stepwell.now() + case when kind between 200 and 299 then interval '1 day' + n * interval '1 second'
                             else n * interval '-1 second' end,
       stepwell.now(), stepwell.now(), case when kind = 690 then stepwell.now() - interval '2 days'
                                           when kind between 400 and 699 then stepwell.now() end,
       case when kind < 400 then 'runnable' when kind < 660 then 'done' when kind < 690 then 'failed'
            when kind < 700 then 'cancelled' when kind < 702 then 'executing' else 'awaiting_signal' end,
       case when kind between 200 and 299 then 'due' when kind between 300 and 339 then 'key'
            when kind between 340 and 369 then 'limit' when kind between 370 and 399 then 'rate' end,
       case when kind in (700, 701) then 1 + n / 752 % {LIVE_WORKERS + DEAD_WORKERS} end,
       case when kind in (700, 701) then pg_catalog.now() end,
       case when kind between 300 and 339 or kind = 700 and n < 752 then '{HOT}'
            when kind = 0 or kind = 701 then 'key ' || n end,
       n % 5,
       case when kind % 10 = 0 then 'order ' || n end,
       case when kind % 10 = 0 then 'live' end,
       case when kind >= 702 then '{{paid}}'::text[] end,
       case when kind >= 702 then stepwell.now() + interval '1 day' + n * interval '1 second' end,
       kind between 700 and 741,
       case when kind between 400 and 409 then n / 752 * 752 + 100 when kind = 690 then n - 1 end,
       case when kind between 400 and 409 or kind = 690 then 0 end,
       case when kind between 400 and 409 then kind - 400 when kind = 690 then 0 end,
       case when kind between 340 and 369 or kind = 701 and n < 10000 then '{HOT}' end,
       case when kind = 701 and n < 10000 then n end,
       case when kind between 370 and 399 then '{HOT}' end
from numbered
"""

_STATES = """
insert into stepwell.instance_data (id, state)
select n, jsonb_build_object('order', n, 'items', 'one, two, three')
from generate_series(1, $1::integer) as n
"""

# Two signals for each executing row, and nearly all that are parked; the second is remembered when it is consumed.
_SIGNALS = """
insert into stepwell.signals (instance_id, sent_at, name, dedup_key, payload)
select n, stepwell.now(), 'invoiced', case when twice = 2 then 'event ' || n end, '{"amount": 7}'
from generate_series(1, $1::integer) as n, generate_series(1, 2) as twice
where n * 7 % 752 between 700 and 741
"""

_LIMITS = f"""
with declared as (
  insert into stepwell.limits (kind, name, n, per, burst, declared)
  values ('concurrency', '{HOT}', 20, null, null, '{{}}'), ('rate', '{HOT}', 5, interval '1 second', 10, '{{}}')
)
insert into stepwell.buckets (key, tokens, refilled_at, next_at)
values ('{HOT}', 3, stepwell.now(), stepwell.now() - interval '1 second')
"""

_BURIED = """
insert into stepwell.tombstones (tenant, key, instance_id, buried_at)
select '', 'old ' || n, n, stepwell.now()
from generate_series(1, $1::integer / 10) as n
"""

_MACHINES = """
insert into stepwell.machines (name, version, initial, queue, steps, active, retention)
values ('order', 2, 'ship', 'default', '{ship}', true, interval '1 day')
"""


async def build(url: str, rows: int = ROWS) -> None:
    """Fill an empty schema; the caller decides whether to take statistics. Wide rows on a second connection."""
    await asyncio.gather(
        _run(url, (_WORKERS,), (_INSTANCES, rows), ("select setval('stepwell.instances_id_seq', $1)", rows)),
        _run(url, (_MACHINES,), (_LIMITS,), (_STATES, rows), (_SIGNALS, rows), (_BURIED, rows)),
    )


async def analyze(url: str) -> None:
    await _run(url, (f"analyze {', '.join(f'stepwell.{table}' for table in TABLES)}",))


async def _run(url: str, *statements: tuple[object, ...]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for sql, *args in statements:
            await connection.execute(str(sql), *args)
    finally:
        await connection.close()
