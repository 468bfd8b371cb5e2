-- Count the questions of units anew: of such that have none open, and no answer on its way by itself but those just
-- started ($2); and of such with questions queued although their window has room, or although not as many are out as
-- are counted. Run after their instances were locked and start_missing.sql, before settle.sql, which lets the next ones
-- out. Keeps: whatever somebody did to the rows, no constraint on the numbers is broken.
-- Index: the primary key, interactions_item, instances_continuing, instances_parent. Locks: the units.
-- Returns: the units, and whether an answer that went on by itself has failed.
with counted as materialized (
  select u.id, n.queued, n.queued + n.out as open, least(n.out, u."window", u.opened) as out
  from stepwell.await_units u
  cross join lateral (
    select (count(*) filter (where q.status = 'queued'))::integer as queued,
           (count(*) filter (where q.status <> 'queued'))::integer as out
    from stepwell.interactions q
    where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
  ) n
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled
)
update stepwell.await_units u
set resolved = greatest(u.opened - n.open, 0), in_flight = n.out,
    continuing = case when n.open > 0 then u.continuing else cardinality(array_positions($2::bigint[], u.id)) end
from counted n
where u.id = any (array[n.id])
  and (n.queued > 0 and (u.in_flight <> n.out or u.in_flight < u."window")
       or n.open = 0 and (u.id = any ($2::bigint[])
                          or not exists (select from stepwell.instances c
                                         where c.continues_unit_id = u.id
                                           and c.status not in ('done', 'failed', 'cancelled')
                                         offset 0)))
returning u.id,
          u.item_step is not null and exists (select from stepwell.instances c
                                              where c.parent_id = u.instance_id and c.parent_round is null
                                                and c.continues_unit_id = u.id
                                                and c.status || '' in ('failed', 'cancelled')
                                              offset 0) as has_failed
