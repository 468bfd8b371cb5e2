-- Close what instances still ask, because they have ended, or gone elsewhere. Run after they were locked.
-- Keeps: a unit that has ended stays as it is; nothing stays open.
-- Index: await_units_open, interactions_item. Locks: units, then interactions. Returns: those of them whose answers go
-- on by themselves (drop_items.sql).
with closed as (
  update stepwell.await_units u
  set status = 'cancelled', finished_at = stepwell.now(), continuing = 0
  where u.instance_id = any ($1::bigint[]) and u.status = 'waiting'
  returning u.id, u.item_step
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select c.id from closed c))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select c.id from closed c where c.item_step is not null
