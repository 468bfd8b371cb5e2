-- Find executing rows whose worker has no live lease: an anti-join, whoever buried the worker, and whenever.
-- Keeps: the finder ($1) must have beaten for one lease ($2) without a gap of more than half of it, up to now: after an
--   outage nobody is buried before all had the time to beat. (A lease of its own that has just outlived the outage is
--   no proof: others beat a moment earlier, and theirs has run out.) Of a worker that has left by itself anybody finds
--   what it had to leave behind.
-- Index: instances_executing; the worker by one or two probes per row (offset 0: never joined).
-- Locks: none (reap.sql locks and checks again).
-- Returns: up to 1,000 rows: id, concurrency key and parent.
select i.id, i.concurrency_key, i.parent_id
from stepwell.instances i
where i.status = 'executing'
  and not exists (select from stepwell.workers w
                  where w.id = i.worker_id and w.lease_until > pg_catalog.now()
                  offset 0)
  and ((select exists (select from stepwell.workers me
                       where me.id = $1 and me.beat_at > pg_catalog.now() - $2::interval / 2
                         and me.steady_since <= pg_catalog.now() - $2::interval))
       or exists (select from stepwell.workers w
                  where w.id = i.worker_id and w.has_left
                  offset 0))
limit 1000
