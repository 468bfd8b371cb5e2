-- Read what became of claims after their commit got no reply, or a reply without them.
-- Index: the primary key.
-- Locks: none.
-- Returns: one row per instance that still exists.
select i.id, i.fence, i.worker_id, i.status, i.committed_fence, i.dropped_fence
from {schema}.instances i
where i.id = any ($1::bigint[])
