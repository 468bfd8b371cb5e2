-- Mark an instance as watched, so that the commit which brings it to rest notifies the waiting client.
-- Keeps: the row lock orders it with that commit: either the commit sees the mark, or the client's reread sees the
--   commit. Index: the primary key. Locks: the row; a claim at that moment passes
--   it over, so the queue of a row that may be claimed is returned, to be announced once more.
update stepwell.instances i
set watched = true
where i.id = $1 and i.status not in ('done', 'failed', 'cancelled') and not i.watched
returning case when i.status = 'runnable' and i.hold is null then i.queue end as queue
