-- Note how sendings ended: out, or to be tried again after a while.
-- Keeps: what was answered, or closed, meanwhile stays so; what another worker has taken since is its own.
-- Index: the primary key (|| '': no other). Locks: the questions. Returns: those that were noted.
update stepwell.interactions q
set status = case when g.delay is null then 'dispatched' else 'waiting' end,
    dispatched_at = case when g.delay is null then stepwell.now() else q.dispatched_at end,
    next_at = stepwell.now() + coalesce(g.delay, interval '0'),
    metadata = coalesce(g.metadata::jsonb, q.metadata), error = g.error, worker_id = null
from unnest($2::uuid[], $3::integer[], $4::interval[], $5::text[], $6::text[])
     as g(id, attempt, delay, metadata, error)
where q.id = any (array[g.id]) and q.status || '' = 'dispatching' and q.worker_id = $1 and q.attempts = g.attempt
returning q.id::text as id
