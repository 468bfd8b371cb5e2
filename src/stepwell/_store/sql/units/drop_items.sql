-- Cancel answers that go on by themselves at units which have ended: nobody waits for them any more.
-- Run after the instances that asked were locked: no new one comes, and none of these ends meanwhile.
-- Keeps: the fence grows, so that an outcome on its way is dropped. One that somebody holds right now, being claimed or
--   in a caller's transaction, is passed over: it comes to an end that counts nowhere.
-- Index: instances_continuing, driven from the units; the primary keys. Locks: the rows, skip locked.
-- Returns: the cancelled rows. Their workers, and who waits for them, are told with the commit: that is rare.
with live as materialized (
  select l.id, l.was
  from unnest($1::bigint[]) as u(id)
  cross join lateral (
    select i.id, i.status as was
    from stepwell.instances i
    where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
    for no key update skip locked
  ) l
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      worker_id = null, claimed_at = null, slot = null, hold = null, hold_reason = null, joined = true
  from live l
  where i.id = any (array[l.id])
  returning i.id, i.fence, i.watched, l.was = 'executing' as was_executing
), stored as (
  update stepwell.instance_data d
  set error = jsonb_build_object('type', 'Cancelled', 'traceback', null, 'message',
                                 'nobody waits for it any more: what asked has ended, or was led elsewhere')
  from cancelled c
  where d.id = any (array[c.id])
)
select c.id, case when c.was_executing then pg_notify('stepwell_revoked', c.id || ' ' || c.fence)::text end as revoked,
       case when c.watched then pg_notify('stepwell_settled', c.id::text)::text end as settled
from cancelled c
