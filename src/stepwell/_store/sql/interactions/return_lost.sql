-- Let questions be sent again whose sender has no live lease: nobody knows whether it sent them.
-- Index: interactions_dispatching; the primary key of workers. Locks: the questions, skip locked.
-- Returns: the transports with something to send, one row per question.
with lost as materialized (
  select q.id
  from stepwell.interactions q
  left join stepwell.workers w on w.id = any (array[q.worker_id])
  where q.status = 'dispatching' and (w.id is null or w.lease_until <= pg_catalog.now())
  for no key update of q skip locked
)
update stepwell.interactions q
set status = 'waiting', next_at = stepwell.now(), worker_id = null
from lost l
where q.id = any (array[l.id]) and q.status || '' = 'dispatching'
returning q.transport
