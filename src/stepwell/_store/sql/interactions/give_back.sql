-- Let questions be sent again that a worker has taken and does not send ($3: those that it does): the answer to its
-- claim was lost, or it stops.
-- Index: interactions_dispatching (for its order: planned on an empty table, any other is as good).
-- Locks: the questions, skip locked. Returns: those that were given back.
with left_over as materialized (
  select q.id
  from stepwell.interactions q
  where q.status = 'dispatching' and q.worker_id between $1 and $1 and q.transport || '' = $2
    and not q.id = any ($3::uuid[])
  order by q.worker_id
  for no key update skip locked
)
update stepwell.interactions q
set status = 'waiting', next_at = stepwell.now(), worker_id = null
from left_over l
where q.id = any (array[l.id])
returning q.id::text as id
