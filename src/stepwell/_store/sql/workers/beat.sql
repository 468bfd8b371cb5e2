-- Renew one worker's lease, and tell what it carries in the database.
-- Keeps: steady_since moves when the last beat is more than half a lease ago (see instances/find_lost.sql). A buried
--   worker gets no row.
-- Index: the primary key; instances_executing, once. Locks: the worker's row.
-- Returns: one row, or none if the worker is no longer known: the ids and fences it carries, and the ids and keys of
--   those older than $4.
with beaten as (
  update stepwell.workers w
  set lease_until = pg_catalog.now() + $2::interval,
      beat_at = pg_catalog.now(),
      steady_since = case
                       when w.beat_at < pg_catalog.now() - $2::interval / 2 then pg_catalog.now()
                       else w.steady_since
                     end,
      running = $3
  where w.id = $1
  returning w.id
)
select c.carried, c.fences, c.old, c.keys
from beaten b
cross join lateral (
  select coalesce(array_agg(i.id), '{}') as carried,
         coalesce(array_agg(i.fence), '{}') as fences,
         coalesce(array_agg(i.id) filter (where i.claimed_at < pg_catalog.now() - $4::interval), '{}') as old,
         coalesce(array_agg(i.concurrency_key) filter (where i.claimed_at < pg_catalog.now() - $4::interval),
                  '{}') as keys
  from stepwell.instances i
  where i.status = 'executing' and i.worker_id = b.id
) c
