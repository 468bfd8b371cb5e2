-- Note how sendings ended: out, or to be tried again after a while.
-- Keeps: what was answered, or closed, meanwhile stays so; what another worker has taken since is its own. Nobody is
--   waited for: one transaction that answers a question, and stays open, holds up no other note, and an admission of
--   many that locks in another order is no deadlock.
-- Index: the primary key (|| '': no other). Locks: the questions, skip locked.
-- Returns: what was still being sent by this worker, and whether that is noted: what is not, somebody holds.
with given as materialized (
  select g.*
  from unnest($2::uuid[], $3::integer[], $4::interval[], $5::text[], $6::text[])
       as g(id, attempt, delay, metadata, error)
), mine as materialized (
  select q.id, g.delay, g.metadata, g.error
  from given g
  join stepwell.interactions q on q.id = any (array[g.id])
  where q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
  for no key update of q skip locked
), noted as (
  update stepwell.interactions q
  set status = case when m.delay is null then 'dispatched' else 'waiting' end,
      dispatched_at = case when m.delay is null then stepwell.now() else q.dispatched_at end,
      next_at = stepwell.now() + coalesce(m.delay, interval '0'),
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
join stepwell.interactions q on q.id = any (array[g.id])
where q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
