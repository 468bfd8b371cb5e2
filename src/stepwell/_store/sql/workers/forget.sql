-- Delete workers without a live lease and without claims.
-- Keeps: a row is needed until its worker's started steps are reaped. The finder ($1) must have beaten for one lease
--   ($2) without a gap, as in instances/find_lost.sql: after an outage, or when the clock went forward, all leases have
--   run out, and living workers renew theirs with the next beat. A lease that was ended explicitly (-infinity) needs no
--   such check.
-- Index: instances_executing, one probe per worker. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked.
with steady as materialized (
  -- A row, if the finder has beaten for a whole lease without a gap.
  select
  from {schema}.workers me
  where me.id = $1 and me.beat_at > pg_catalog.now() - $2::interval / 2 and me.beat_at <= clock_timestamp()
    and me.steady_since <= pg_catalog.now() - $2::interval
), ended as materialized (
  select w.id
  from {schema}.workers w
  where w.lease_until <= pg_catalog.now() and (w.lease_until = '-infinity' or exists (select from steady))
    and not exists (select from {schema}.instances i where i.status = 'executing' and i.worker_id = w.id
                    offset 0)
  for no key update of w skip locked
)
delete from {schema}.workers w
using ended e
where w.id = e.id
returning w.id
