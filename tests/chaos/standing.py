"""What the database says of rows that do not move: each row, what holds its lock, and the worker that carries it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.chaos.servers import Server

MOST = 10
LONGEST_QUERY = 100
ROWS = """
select coalesce(i.key, i.machine || ' #' || i.id) as name, i.id, i.status, i.hold, i.step, i.attempt, i.visit, i.fence,
       i.concurrency_key as key, i.concurrency_limit as limit, i.children_pending as children, i.await_unit_id as unit,
       round(extract(epoch from clock_timestamp() - i.claimed_at), 1) as claimed_ago,
       round(extract(epoch from clock_timestamp() - i.due_at), 1) as due_ago,
       i.worker_id as worker, w.pid as process, w.has_left,
       round(extract(epoch from w.lease_until - clock_timestamp()), 1) as lease_left,
       round(extract(epoch from clock_timestamp() - w.beat_at), 1) as beat_ago,
       i.claimed_at <= w.begun_at and not i.id = any (w.waiting) as begun
from stepwell.instances i left join stepwell.workers w on w.id = i.worker_id
where i.id = any ($1) order by i.id
"""
FREE = "select id from stepwell.instances where id = any ($1) for no key update skip locked"
# xmax is the transaction that has locked the row, or writes it. Where several share the lock it names none of them:
# then only the list of open transactions shows which they are.
HOLDERS = """
select i.id, l.pid from stepwell.instances i
join pg_locks l on l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.transactionid = i.xmax
where i.id = any ($1)
"""
OPEN = """
select a.pid, a.application_name as application, a.state, a.wait_event as waits_for,
       round(extract(epoch from clock_timestamp() - a.state_change), 1) as since,
       round(extract(epoch from clock_timestamp() - a.xact_start), 1) as transaction,
       nullif(pg_blocking_pids(a.pid), '{}') as behind, regexp_replace(a.query, '\\s+', ' ', 'g') as query
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  and (a.pid = any ($1) or a.xact_start < clock_timestamp() - interval '5 s')
order by a.xact_start limit 20
"""


async def describe(server: Server, ids: Sequence[int]) -> list[str]:
    """Each row, with its worker's lease and the holder of its lock; then the open transactions."""
    ids = ids[:MOST]
    free = {row["id"] for row in await server.query(FREE, ids)}
    holders = {row["id"]: row["pid"] for row in await server.query(HOLDERS, ids)}
    lines = []
    for row in await server.query(ROWS, ids):
        lock = "free" if row["id"] in free else f"held by pid {holders.get(row['id'], 'unknown')}"
        lines.append(f"row {_words(row.items())} lock={lock}")
    opened = await server.query(OPEN, sorted(set(holders.values())))
    return lines + [f"backend {_words(row.items())}" for row in opened]


def _words(pairs: Iterable[tuple[str, Any]]) -> str:
    return " ".join(f"{name}={str(value)[:LONGEST_QUERY]}" for name, value in pairs if value is not None)
