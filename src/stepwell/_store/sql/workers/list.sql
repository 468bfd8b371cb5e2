-- List the workers, the oldest first, and whether their lease is live.
-- Locks: none.
select w.id, w.host, w.pid, w.release, w.queues::text as queues, w.machines, w.started_at, w.beat_at,
       w.lease_until > pg_catalog.now() as alive, w.running
from {schema}.workers w
order by w.started_at, w.id
