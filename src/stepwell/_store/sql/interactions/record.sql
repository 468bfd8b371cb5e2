-- Record how attempts to send ended: sent, or to be tried again after a delay.
-- Keeps: what was completed or closed meanwhile stays so; what another worker has claimed since is its own. Waits for
--   no lock: an open transaction that completes one interaction delays no other record, and a batch of completions that
--   locks in another order causes no deadlock.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the interactions, skip locked.
-- Returns: the interactions that this worker was still sending, and whether the result is recorded: the others are
--   locked by another transaction.
with given as materialized (
  select g.*
  from unnest($2::uuid[], $3::integer[], $4::interval[], $5::text[], $6::text[])
       as g(id, attempt, delay, metadata, error)
), mine as materialized (
  select q.id, g.delay, g.metadata, g.error
  from given g
  join {schema}.interactions q on q.id = any (array[g.id])
  where q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
  for no key update of q skip locked
), noted as (
  update {schema}.interactions q
  set status = case when m.delay is null then 'dispatched' else 'waiting' end,
      dispatched_at = case when m.delay is null then {schema}.now() else q.dispatched_at end,
      next_at = {schema}.now() + coalesce(m.delay, interval '0'),
      metadata = coalesce(m.metadata::jsonb, q.metadata), error = m.error, worker_id = null
  from mine m
  where q.id = any (array[m.id])
  returning q.id
)
select n.id::text as id, true as is_noted
from noted n
union all
select q.id::text, false
from given g
join {schema}.interactions q on q.id = any (array[g.id])
where q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
