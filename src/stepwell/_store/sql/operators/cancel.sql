-- End instances as cancelled. The fence grows, so that an outcome in flight is rejected. The inbox stays, closed.
-- Keeps: what the instance was doing (`operated`), for a retry. Only rows that have not ended change, and side rows
--   only of those. Run after operators/lock.sql.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the rows (locked already).
-- Returns: the cancelled rows: the fence, whether a client waits, whether it was executing, the parent at which its end
--   is counted, and the limit of which it held a slot or for which it waited.
with live as materialized (
  select i.id, i.joined as was_joined, i.status as was, i.deadline
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' not in ('done', 'failed', 'cancelled')
), cancelled as (
  update {schema}.instances i
  set status = 'cancelled', finished_at = {schema}.now(), updated_at = {schema}.now(), fence = i.fence + 1,
      dropped_fence = case when i.status = 'executing' then i.fence else i.dropped_fence end,
      worker_id = null, slot = null, hold = null, hold_reason = null, deadline = null,
      visit = i.visit + (i.filling_unit_id is not null)::integer, filling_unit_id = null,
      joined = i.joined or i.parent_id is not null
  from live l
  where i.id = l.id
  returning i.id, i.fence, i.watched, l.was, l.deadline, l.was = 'executing' as was_executing,
            case when i.joined and not l.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not l.was_joined then i.continues_unit_id end as continues,
            i.concurrency_limit
), stored as (
  update {schema}.instance_data d
  set error = $2::text::jsonb, operated = $3::text::jsonb
                                       || jsonb_build_object('at', {schema}.now(), 'was', c.was, 'deadline', c.deadline)
  from cancelled c
  where d.id = c.id
)
select id, fence, watched, was_executing, joins, parent_round, continues, concurrency_limit
from cancelled
