-- Find questions whose time is over, the longest first. No payload is read.
-- Index: interactions_deadline. Locks: none. Returns: up to 500 ids, with their instances.
select q.id::text as id, q.instance_id
from stepwell.interactions q
where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline <= stepwell.now()
order by q.deadline, q.id
limit 500
