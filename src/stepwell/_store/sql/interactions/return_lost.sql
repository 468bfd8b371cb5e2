-- Let questions be sent again whose sender has no live lease: nobody knows whether it sent them.
-- Keeps: what a live worker has taken since (it was returned by another meanwhile) is that one's. Joined to its worker
--   in the locking query it would be rechecked against the dead one's row, as in instances/reap.sql.
-- Index: interactions_dispatching; the primary keys. Locks: the questions, skip locked.
-- Returns: the transports with something to send, one row per question.
with lost as materialized (
  select q.id, q.worker_id
  from stepwell.interactions q
  left join stepwell.workers w on w.id = any (array[q.worker_id])
  where q.status = 'dispatching' and (w.id is null or w.lease_until <= pg_catalog.now())
), locked as materialized (
  select q.id
  from lost l
  join stepwell.interactions q on q.id = any (array[l.id])
  where q.status || '' = 'dispatching' and q.worker_id = l.worker_id
  for no key update of q skip locked
)
update stepwell.interactions q
set status = 'waiting', next_at = stepwell.now(), worker_id = null
from locked l
where q.id = any (array[l.id])
returning q.transport
