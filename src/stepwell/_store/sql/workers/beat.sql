-- Renew one worker's lease, and read which claims it has in the database.
-- Keeps: steady_since moves when the last beat is more than half a lease ago or, as the clock went back, in the future
--   (see instances/find_lost.sql). A forgotten worker gets no row, nor does a process other than the one the row was
--   inserted for ($5 to $8). A begun_at in the future is reset, since it tells nothing of claims made since the clock
--   went back.
-- Index: the primary key; instances_executing, once.
-- Locks: the worker's row.
-- Returns: one row, or none if the worker is no longer known: the ids and fences of its claims; the ids and keys of
--   those older than $4, or from the future; and the schema's version (see schema/read_version.sql).
with beaten as (
  update {schema}.workers w
  set lease_until = pg_catalog.now() + $2::interval,
      beat_at = pg_catalog.now(),
      steady_since = case
                       when w.beat_at < pg_catalog.now() - $2::interval / 2 or w.beat_at > pg_catalog.now()
                       then pg_catalog.now()
                       else w.steady_since
                     end,
      begun_at = case when w.begun_at > clock_timestamp() then '-infinity' else w.begun_at end,
      running = $3
  where w.id = $1 and (w.host, w.boot, w.pid, w.process) = ($5, $6, $7, $8)
  returning w.id
)
select c.carried, c.fences, c.old, c.keys,
       (select m.version from {schema}.meta m) as version,
       (select m.oldest_code from {schema}.meta m) as oldest_code
from beaten b
cross join lateral (
  select coalesce(array_agg(i.id), '{}') as carried,
         coalesce(array_agg(i.fence), '{}') as fences,
         coalesce(array_agg(i.id) filter (where i.is_old), '{}') as old,
         coalesce(array_agg(i.concurrency_key) filter (where i.is_old), '{}') as keys
  from (select e.id, e.fence, e.concurrency_key,
               e.claimed_at not between pg_catalog.now() - $4::interval and pg_catalog.now() + $4::interval
                 as is_old
        from {schema}.instances e
        where e.status = 'executing' and e.worker_id = b.id) i
) c
