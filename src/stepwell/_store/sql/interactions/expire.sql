-- End overdue interactions. Run in a transaction that has locked their instances before this statement.
-- Keeps: what was completed meanwhile stays completed; what was asked again is not ended; nor is what
--   await_units/clean_up.sql closes.
-- Index: the primary keys. See docs/internals/sql-plans.md.
-- Locks: the interactions.
-- Returns: the units at which they are to be counted, with how many.
with ended as (
  update {schema}.interactions q
  set status = 'timed_out', finished_at = {schema}.now()
  where q.id = any ($1::uuid[]) and q.status || '' in ('waiting', 'dispatching', 'dispatched')
    and q.deadline <= {schema}.now()
    and exists (select from {schema}.await_units u where u.id = q.unit_id and u.status || '' = 'waiting' offset 0)
  returning q.unit_id
)
select e.unit_id, count(*)::integer as number from ended e group by e.unit_id
