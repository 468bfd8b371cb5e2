-- Resume a paused queue.
-- Index: the primary key.
-- Locks: the queue's row.
-- Returns: a row, if it was paused.
update {schema}.queues q
set paused_at = null, paused_by = null, reason = null, changed_at = {schema}.now()
where q.name = $1 and q.paused_at is not null
returning q.name
