-- Count the questions of units anew that have none open, and no answer on its way by itself but those just started
-- ($2). Run after their instances were locked and start_missing.sql, before settle.sql.
-- Index: the primary key, interactions_item, instances_continuing, instances_parent. Locks: the units.
-- Returns: the units, and whether an answer that went on by itself has failed.
update stepwell.await_units u
set resolved = u.opened, in_flight = 0, continuing = cardinality(array_positions($2::bigint[], u.id))
where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled
  and not exists (select from stepwell.interactions q
                  where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                  offset 0)
  and (u.id = any ($2::bigint[])
       or not exists (select from stepwell.instances c
                      where c.continues_unit_id = u.id and c.status not in ('done', 'failed', 'cancelled')
                      offset 0))
returning u.id,
          u.item_step is not null and exists (select from stepwell.instances c
                                              where c.parent_id = u.instance_id and c.parent_round is null
                                                and c.continues_unit_id = u.id
                                                and c.status || '' in ('failed', 'cancelled')
                                              offset 0) as has_failed
