-- Find questions whose time is over, the longest first, after the question $2 of the deadline $1: those before it are
-- held by somebody. No payload is read.
-- Index: interactions_deadline. Locks: none. Returns: up to 500 ids, with their deadlines and instances.
select q.id::text as id, q.deadline, q.instance_id
from stepwell.interactions q
where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline <= stepwell.now()
  and (q.deadline, q.id) > ($1::timestamptz, $2::uuid)
order by q.deadline, q.id
limit 500
