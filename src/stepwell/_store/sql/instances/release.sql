-- Give back claims whose step has not begun: same attempt, same due time.
-- Keeps: only rows that still carry the worker's id.
-- Index: the primary key, driven from the ids (|| '' and any (array[…]): see commit.sql).
-- Locks: the rows, skip locked (what a foreign transaction holds stays, and is the reaper's).
-- Returns: id and queue of what was given back, and the limit whose slot is free.
with mine as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any ($2::bigint[]) and i.worker_id = $1 and i.status || '' = 'executing'
  for no key update skip locked
)
update stepwell.instances i
set status = 'runnable', worker_id = null, claimed_at = null, slot = null, updated_at = stepwell.now()
from mine
where i.id = any (array[mine.id])
returning i.id, i.queue, i.watched, i.concurrency_limit
