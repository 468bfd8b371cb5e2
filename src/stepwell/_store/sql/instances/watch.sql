-- Mark an instance as watched, so that the commit which ends or parks it notifies the waiting client.
-- Keeps: the row lock orders the mark with that commit: either the commit sees the mark, or nothing is marked, and the
--   client's second read sees the commit. A claim or a group commit at that moment skips the locked row: the queue of a
--   claimable row is returned, to be notified again, and the commit is repeated. So the mark does not wait for the
--   disk; if the server loses it, the client polls.
-- Index: the primary key.
-- Locks: the row.
-- Returns: the status of the marked row, and its queue if it may be claimed; nothing if it has ended, or was marked.
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
)
update {schema}.instances i
set watched = true
from unsynced
where i.id = $1 and i.status not in ('done', 'failed', 'cancelled') and not i.watched
returning i.status, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
