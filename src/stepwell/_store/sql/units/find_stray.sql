-- Find open units that their instance neither waits for nor fills, and such whose questions have all ended, with no
-- answer still on its way by itself: there should be none. Looks at 500 open units after the instance $1, so that
-- everything is looked at in turn; at their questions from the last one, which is mostly open.
-- Index: await_units_open, the primary key, interactions_item, instances_continuing. Locks: none.
-- Returns: instance and unit of each; and, with no unit, the instance up to which it looked, unless that was all.
with looked as materialized (
  select u.id, u.instance_id, u.is_filled
  from stepwell.await_units u
  where u.status = 'waiting' and u.instance_id > $1
  order by u.instance_id
  fetch first 500 rows with ties
)
select l.instance_id, l.id as unit_id
from looked l
where not exists (select from stepwell.instances i
                  where i.id = l.instance_id and l.id in (i.await_unit_id, i.filling_unit_id)
                  offset 0)
   or l.is_filled and not exists (select from stepwell.interactions q
                                  where q.unit_id = l.id
                                    and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                                  order by q.item desc
                                  offset 0)
                  and not exists (select from stepwell.instances c
                                  where c.continues_unit_id = l.id
                                    and c.status not in ('done', 'failed', 'cancelled')
                                  offset 0)
union all
select max(l.instance_id), null from looked l having count(*) >= 500
