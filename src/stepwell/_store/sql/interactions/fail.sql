-- End interactions that can never be sent. Run in a transaction that has locked their instances before this statement.
-- Keeps: as interactions/record.sql; what await_units/clean_up.sql closes is left to it.
-- Index: the primary keys.
-- Locks: the interactions.
-- Returns: the units at which they are to be counted, with how many.
with ended as (
  update {schema}.interactions q
  set status = 'failed', error = g.error, finished_at = {schema}.now(), worker_id = null
  from unnest($2::uuid[], $3::integer[], $4::text[]) as g(id, attempt, error)
  where q.id = any (array[g.id]) and q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
    and exists (select from {schema}.await_units u where u.id = q.unit_id and u.status || '' = 'waiting' offset 0)
  returning q.unit_id
)
select e.unit_id, count(*)::integer as number from ended e group by e.unit_id
