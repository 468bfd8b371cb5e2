-- End questions that can never be sent. Run in a transaction that has locked their instances before this statement.
-- Keeps: as record.sql. Index: the primary key. Locks: the questions. Returns: the units at which they are counted.
with ended as (
  update stepwell.interactions q
  set status = 'failed', error = g.error, finished_at = stepwell.now(), worker_id = null
  from unnest($2::uuid[], $3::integer[], $4::text[]) as g(id, attempt, error)
  where q.id = any (array[g.id]) and q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
  returning q.unit_id
)
select e.unit_id, count(*)::integer as number from ended e group by e.unit_id
