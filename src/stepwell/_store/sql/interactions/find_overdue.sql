-- Find overdue interactions, the longest overdue first, after the interaction $2 with the deadline $1: those before it
-- are locked by other transactions. No payload is read.
-- Keeps: what await_units/clean_up.sql closes is left to it.
-- Index: interactions_deadline, the primary key of units.
-- Locks: none.
-- Returns: up to 500 ids, with their deadlines and instances.
select q.id::text as id, q.deadline, q.instance_id
from {schema}.interactions q
where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline <= {schema}.now()
  and exists (select from {schema}.await_units u where u.id = q.unit_id and u.status || '' = 'waiting' offset 0)
  and (q.deadline, q.id) > ($1::timestamptz, $2::uuid)
order by q.deadline, q.id
limit 500
