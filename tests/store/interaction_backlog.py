"""A deep backlog of interactions: many open, many ended, one unit with a long queue, some being sent."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import asyncpg

TABLES = ("instances", "instance_data", "await_units", "interactions", "reply_types", "workers")
OPEN, ENDED, QUEUED, CONTINUED, TO_SEND, SENDING, LATE, LOST = 100_000, 100_000, 50_000, 10_000, 1_000, 500, 600, 100
WINDOW = 200
# What `make test` builds is a tenth of it, enough to tell an index from a scan; `make depth` builds it whole.
SHARE = 10 // int(os.environ.get("STEPWELL_DEPTH", "1"))
SENDER, DEAD = 1, 99

# Instances 1 to open wait for one reply each: every hundredth over a transport that sends, or is sending (by a live
# worker, some by a dead one), the rest over "manual" in one tenant; some of those are late, half have no deadline. The
# next ones have ended. The last instance executes, and fills a unit with a long queue.
_INSTANCES = f"""
insert into stepwell.instances (id, machine, version, step, queue, status, due_at, created_at, updated_at, finished_at,
                                await_unit_id, visit, worker_id, claimed_at, fence, filling_unit_id)
overriding system value
select n, 'order', 1, 'ship', 'default',
       case when n <= $1 then 'awaiting_external' when n <= $1 + $2 then 'done' else 'executing' end, now(), now(),
       now(), case when n > $1 and n <= $1 + $2 then now() end, case when n <= $1 + $2 then n end,
       case when n <= $1 + $2 then 2 else 0 end, case when n > $1 + $2 then {SENDER} end, now(), 1,
       case when n > $1 + $2 then n end
from generate_series(1, $1::integer + $2::integer + 1) n
"""
_STATES = "insert into stepwell.instance_data (id, state) select n, '{}' from generate_series(1, $1::integer) n"
_UNITS = f"""
insert into stepwell.await_units (id, instance_id, visit, tenant, machine, version, step, transport, is_sent,
                                  reply_type, timeout, on_timeout, requires_token, "window", opened, resolved,
                                  in_flight, is_filled, status, created_at, finished_at)
overriding system value
select n, n, 1, '', 'order', 1, 'ask', 'manual', false, 'x', interval '1 day', 'wake', false,
       case when n > $1 + $2 then {WINDOW} end, case when n > $1 + $2 then {WINDOW} + $3 else 1 end,
       case when n > $1 and n <= $1 + $2 then 1 else 0 end,
       case when n <= $1 then 1 when n <= $1 + $2 then 0 else {WINDOW} end, n <= $1 + $2,
       case when n > $1 and n <= $1 + $2 then 'completed' else 'waiting' end, now(),
       case when n > $1 and n <= $1 + $2 then now() end
from generate_series(1, $1::integer + $2::integer + 1) n
"""
_ONES = f"""
insert into stepwell.interactions (id, correlation, unit_id, instance_id, worker_id, created_at, deadline, next_at,
                                   finished_at, attempts, tenant, transport, status, assignee, group_name,
                                   idempotency_key, request, reply)
select md5('q' || n)::uuid, md5('c' || n)::uuid, n, n,
       case when k <= $3::integer then null when k <= $3 + $4::integer then {SENDER}
            when k <= $3 + $4 + $5::integer then {DEAD} end,
       now() - n * interval '1 second',
       case when k > $3 + $4 + $5 and k <= $3 + $4 + $5 + $6::integer then now() - n * interval '1 second'
            when n % 2 = 0 then now() + interval '1 day' + n * interval '1 second' end,
       now() - n * interval '1 second', case when n > $1 then now() end, 1, '',
       case when k <= $3 + $4 + $5 then 'there' else 'manual' end,
       case when n > $1 then 'completed' when k <= $3 then 'waiting' when k <= $3 + $4 + $5 then 'dispatching'
            else 'dispatched' end,
       case when n % 1000 = 7 then 'ana' when n % 3 = 0 then 'bob' end,
       case when n % 1000 = 8 then 'few' else 'all' end,
       n::text, '{{"n": 1}}', case when n > $1 then '1'::jsonb end
from (select n, n * 7 % $1 + case when n > $1 then $1 else 0 end as k
      from generate_series(1, $1::integer + $2::integer) n) numbered
"""
_ITEMS = f"""
insert into stepwell.interactions (id, correlation, unit_id, instance_id, created_at, next_at, item, tenant, transport,
                                   status, idempotency_key, request)
select md5('i' || n)::uuid, md5('d' || n)::uuid, $1, $1, now(), now(), n, '', 'manual',
       case when n < {WINDOW} then 'dispatched' else 'queued' end, n::text, '{{"n": 1}}'
from generate_series(0, $2::integer + {WINDOW} - 1) n
"""
# Completions of earlier items of that unit, with continuations that have ended.
_CONTINUED = """
insert into stepwell.instances (id, machine, version, step, queue, status, due_at, created_at, updated_at, finished_at,
                                parent_id, child_index, continues_unit_id)
overriding system value
select $1 + n, 'order', 1, 'item', 'default', 'done', now(), now(), now(), now(), $1, n, $1
from generate_series(1, $2::integer) n
"""
_WORKERS = f"""
insert into stepwell.workers (id, host, boot, pid, process, release, queues, machines, lease_until)
overriding system value
select w, 'h', 'b', w, 'p', '0', '{{}}', '{{order@1}}', now() + case when w = {SENDER} then interval '1 day'
                                                                  else interval '-1 day' end
from unnest(array[{SENDER}, {DEAD}]) w
"""
_TYPE = """
insert into stepwell.reply_types (id, name, reference, schema) values ('x', 'int', '{}', '{"type": "integer"}')
"""
_SEQUENCES = "select setval('stepwell.instances_id_seq', $1), setval('stepwell.await_units_id_seq', $1)"


@dataclass(frozen=True, slots=True)
class Questions:
    """Interactions of the backlog that arguments name: (id, unit) each."""

    inbox: list[tuple[str, int]] = field(default_factory=list)
    sending: list[tuple[str, int]] = field(default_factory=list)
    late: list[tuple[str, int]] = field(default_factory=list)
    big: int = 0  # the instance, and the unit, with the long queue
    cursor: str | None = None  # behind half of the pending ones


async def build(url: str, share: int = SHARE) -> None:
    """Fill an empty schema; the caller decides whether to take statistics."""
    opened, ended, queued = OPEN // share, ENDED // share, QUEUED // share
    big = opened + ended + 1
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_TYPE)
        await connection.execute(_WORKERS)
        await connection.execute(_INSTANCES, opened, ended)
        await connection.execute(_STATES, big + CONTINUED // share)
        await connection.execute(_UNITS, opened, ended, queued)
        await connection.execute(_ONES, opened, ended, *(n // share for n in (TO_SEND, SENDING, LOST, LATE)))
        await connection.execute(_ITEMS, big, queued)
        await connection.execute(_CONTINUED, big, CONTINUED // share)
        await connection.execute(_SEQUENCES, big + CONTINUED // share)
    finally:
        await connection.close()


async def analyze(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"analyze {', '.join(f'stepwell.{table}' for table in TABLES)}")
    await connection.close()


async def sample(url: str) -> Questions:
    connection = await asyncpg.connect(url)
    try:
        async def some(where: str) -> list[tuple[str, int]]:
            rows = await connection.fetch(
                f"select id::text, unit_id from stepwell.interactions where {where} order by md5(id::text) limit 500"
            )
            return [tuple(row) for row in rows]

        big = await connection.fetchval("select max(id) from stepwell.await_units")
        cursor = await connection.fetchval(
            "select jsonb_build_array(coalesce(deadline, 'infinity'), created_at, id)::text from stepwell.interactions "
            "where status = 'dispatched' and tenant = '' order by coalesce(deadline, 'infinity'), created_at, id "
            "offset (select count(*) / 2 from stepwell.interactions where status = 'dispatched') limit 1"
        )
        return Questions(
            await some(f"status = 'dispatched' and unit_id < {big} and (deadline is null or deadline > now())"),
            await some(f"status = 'dispatching' and worker_id = {SENDER}"),
            await some("status = 'dispatched' and deadline <= now()"),
            big, cursor,
        )  # fmt: skip
    finally:
        await connection.close()
