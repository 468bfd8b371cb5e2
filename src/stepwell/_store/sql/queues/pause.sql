-- Pause a queue: nothing is claimed from it until it is resumed.
-- Keeps: when this answers, no claim from the queue is under way, and every later one sees the pause (_may_claim);
--   who paused it last, and why, is what is kept.
-- Index: the primary key. Locks: the queue's advisory lock, alone, after claims under way; its row.
-- Returns: one row: whether it was paused already.
with alone as materialized (
  select pg_advisory_xact_lock(hashtextextended('stepwell queue:' || $1::text, 0))
)
insert into stepwell.queues as q (name, paused_at, paused_by, reason, changed_at)
select $1, stepwell.now(), $2::text, $3::text, stepwell.now()
from alone
on conflict (name) do update
set paused_at = coalesce(q.paused_at, excluded.paused_at), paused_by = excluded.paused_by, reason = excluded.reason,
    changed_at = excluded.changed_at
returning q.paused_at < q.changed_at as was_paused
