-- Tell what became of claims whose commit did not answer, or answered without them.
-- Index: the primary key. Locks: none. Returns: one row per instance that still exists.
select i.id, i.fence, i.worker_id, i.status
from stepwell.instances i
where i.id = any ($1::bigint[])
