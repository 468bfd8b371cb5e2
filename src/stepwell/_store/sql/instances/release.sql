-- Give back claims whose step has not begun: same attempt, same due time.
-- Keeps: only rows that still carry the worker's id under the claim's fence: what was taken away, and claimed anew by
--   the same worker, is no longer this claim's to give back.
-- Index: the primary key, driven from the ids (|| '' and any (array[…]): see commit.sql).
-- Locks: the rows, skip locked (what a foreign transaction holds stays, and is the reaper's).
-- Returns: id and queue of what was given back, and the limit whose slot is free.
with mine as materialized (
  select i.id
  from unnest($2::bigint[], $3::bigint[]) as c(id, fence)
  join stepwell.instances i on i.id = any (array[c.id])
  where i.worker_id = $1 and i.fence = c.fence and i.status || '' = 'executing'
  for no key update of i skip locked
)
update stepwell.instances i
set status = 'runnable', worker_id = null, claimed_at = null, slot = null, updated_at = stepwell.now()
from mine
where i.id = any (array[mine.id])
returning i.id, i.queue, i.watched, i.concurrency_limit
