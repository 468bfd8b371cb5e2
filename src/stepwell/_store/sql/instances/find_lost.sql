-- Find executing rows of workers without a live lease, also of workers without a row.
-- Keeps: the finder ($1) must have beaten for one lease ($2) up to now, without a gap of more than half of it: after an
--   outage every worker gets time to beat before one is taken for dead. (That the finder's own lease survived the
--   outage is no proof: other workers beat a moment earlier.) What a worker left when it stopped needs no such check.
--   If the clock went back, a beat may lie further in the future than the worker's lease is long: a living worker would
--   have beaten since, if the finder has for such a lease, so that lease is ended here; it would hold until the clock
--   is there again. (A beat that is ahead by less may be a current one; its lease runs out within two leases.)
-- Index: instances_executing; the worker by one or two probes per row. See docs/internals/sql-plans.md.
-- Locks: the workers of leases that it ends, skip locked (instances/reap.sql locks the rows and checks again).
-- Returns: up to 1,000 rows: id, concurrency key and parent.
with steady as materialized (
  -- A row, if the finder has beaten for a whole lease without a gap.
  select me.steady_since
  from {schema}.workers me
  where me.id = $1 and me.beat_at > pg_catalog.now() - $2::interval / 2 and me.beat_at <= clock_timestamp()
    and me.steady_since <= pg_catalog.now() - $2::interval
), ahead as materialized (
  -- Workers that last beat before the clock went back.
  select w.id
  from steady s join {schema}.workers w on true
  where case when w.lease_until > pg_catalog.now() and w.lease_until < 'infinity'
             then w.beat_at > pg_catalog.now() + (w.lease_until - w.beat_at)
                  and s.steady_since <= pg_catalog.now() - (w.lease_until - w.beat_at)
             else false end
  for no key update of w skip locked
), ended as (
  update {schema}.workers w
  set lease_until = '-infinity'
  from ahead a
  where w.id = any (array[a.id])
  returning w.id
)
select i.id, i.concurrency_key, i.parent_id
from {schema}.instances i
where i.status = 'executing'
  and (i.worker_id = any (array(select e.id from ended e))
       or not exists (select from {schema}.workers w
                      where w.id = i.worker_id and w.lease_until > pg_catalog.now()
                      offset 0)
          and (exists (select from steady)
               or exists (select from {schema}.workers w
                          where w.id = i.worker_id and w.has_left
                          offset 0)))
limit 1000
