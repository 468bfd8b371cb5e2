-- Mark an instance as watched, so that the commit which brings it to rest notifies the waiting client.
-- Keeps: the row lock orders it with that commit: either the commit sees the mark, or nothing is marked, and the
--   client's reread sees the commit. Index: the primary key. Locks: the row; a claim at that moment passes it over, so
--   the queue of a row that may be claimed is returned, to be announced once more. A flush passes it over too, and
--   comes again: so the mark does not wait for the disk. If the server loses it, the client polls.
-- Returns: the status of what was marked, and its queue if it may be claimed; nothing if it has ended, or was marked.
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
)
update stepwell.instances i
set watched = true
from unsynced
where i.id = $1 and i.status not in ('done', 'failed', 'cancelled') and not i.watched
returning i.status, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
