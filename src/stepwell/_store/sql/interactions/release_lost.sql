-- Release interactions if their sender has no live lease: nothing tells whether they were sent.
-- Keeps: an interaction that a live worker has claimed since stays its own. Joined to its worker in the locking query,
--   it would be rechecked against the dead worker's row, as in instances/reap.sql.
-- Index: interactions_dispatching; the primary keys.
-- Locks: the interactions, skip locked.
-- Returns: the transports with something to send, one row per interaction.
with lost as materialized (
  select q.id, q.worker_id
  from {schema}.interactions q
  left join {schema}.workers w on w.id = any (array[q.worker_id])
  where q.status = 'dispatching' and (w.id is null or w.lease_until <= pg_catalog.now())
), locked as materialized (
  select q.id
  from lost l
  join {schema}.interactions q on q.id = any (array[l.id])
  where q.status || '' = 'dispatching' and q.worker_id = l.worker_id
  for no key update of q skip locked
)
update {schema}.interactions q
set status = 'waiting', next_at = {schema}.now(), worker_id = null
from locked l
where q.id = any (array[l.id])
returning q.transport
