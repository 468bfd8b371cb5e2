-- Cancel continuations of units that have ended, since nothing waits for them any more. Run after the instances that
-- asked were locked, so that no continuation is added.
-- Keeps: the fence grows, so that an outcome in flight is rejected. A row that another transaction holds right now (it
--   is being claimed, or is in a caller's transaction) is skipped: its end is counted nowhere.
-- Index: instances_continuing, driven from the units; the primary keys.
-- Locks: the rows, skip locked.
-- Returns: the cancelled rows, with what they held or waited for, so that the caller admits the next ones. Their
--   workers and waiting clients are notified with the commit, since that is rare.
with live as materialized (
  select l.id, l.was
  from unnest($1::bigint[]) as u(id)
  cross join lateral (
    select i.id, i.status as was
    from {schema}.instances i
    where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
    for no key update skip locked
  ) l
), cancelled as (
  update {schema}.instances i
  set status = 'cancelled', finished_at = {schema}.now(), updated_at = {schema}.now(), fence = i.fence + 1,
      dropped_fence = case when i.status = 'executing' then i.fence else i.dropped_fence end,
      worker_id = null, slot = null, hold = null, hold_reason = null, joined = true
  from live l
  where i.id = any (array[l.id])
  returning i.id, i.fence, i.watched, l.was = 'executing' as was_executing, i.concurrency_key, i.concurrency_limit
), stored as (
  update {schema}.instance_data d
  set error = jsonb_build_object('type', 'Cancelled', 'traceback', null, 'message',
                                 'no instance waits for it: the one that asked has ended, or continues elsewhere')
  from cancelled c
  where d.id = any (array[c.id])
)
select c.id, c.concurrency_key, c.concurrency_limit,
       case when c.was_executing then {schema}._notify('{schema}_revoked', c.id || ' ' || c.fence)::text end as revoked,
       case when c.watched then {schema}._notify('{schema}_settled', c.id::text)::text end as settled
from cancelled c
