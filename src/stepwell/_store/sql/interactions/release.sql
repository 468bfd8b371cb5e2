-- Release interactions that a worker has claimed and does not send ($3: those that it does): the reply to its claim was
-- lost, or it stops.
-- Index: interactions_dispatching; the range and the order make the planner use it, also on an empty table.
-- Locks: the interactions, skip locked.
-- Returns: the released interactions.
with left_over as materialized (
  select q.id
  from {schema}.interactions q
  where q.status = 'dispatching' and q.worker_id between $1 and $1 and q.transport || '' = $2
    and not q.id = any ($3::uuid[])
  order by q.worker_id
  for no key update skip locked
)
update {schema}.interactions q
set status = 'waiting', next_at = {schema}.now(), worker_id = null
from left_over l
where q.id = any (array[l.id])
returning q.id::text as id
