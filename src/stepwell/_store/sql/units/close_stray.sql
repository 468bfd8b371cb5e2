-- Close units that their instance neither waits for nor fills. Run after the instances were locked.
-- Index: the primary keys, interactions_item. Locks: units, then interactions. Returns: the closed units.
with closed as (
  update stepwell.await_units u
  set status = 'cancelled', finished_at = stepwell.now(), continuing = 0
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting'
    and not exists (select from stepwell.instances i
                    where i.id = u.instance_id and u.id in (i.await_unit_id, i.filling_unit_id)
                    offset 0)
  returning u.id
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select c.id from closed c))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select c.id from closed c
