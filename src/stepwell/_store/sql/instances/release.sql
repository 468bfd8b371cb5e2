-- Release claims that have not started their step: same attempt, same due time.
-- Keeps: only rows that still have the worker's id and the claim's fence: one that was reaped, and claimed anew by the
--   same worker, is not this claim.
-- Index: the primary key, driven from the ids. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked; what another transaction holds is released by a later try, or by a beat.
-- Returns: id and queue of the released rows, and the limit with a free slot.
with mine as materialized (
  select i.id
  from unnest($2::bigint[], $3::bigint[]) as c(id, fence)
  join {schema}.instances i on i.id = any (array[c.id])
  where i.worker_id = $1 and i.fence = c.fence and i.status || '' = 'executing'
  for no key update of i skip locked
)
update {schema}.instances i
set status = 'runnable', dropped_fence = i.fence, worker_id = null, claimed_at = null, slot = null,
    updated_at = {schema}.now()
from mine
where i.id = any (array[mine.id])
returning i.id, i.queue, i.watched, i.concurrency_limit
