-- Count the questions of units anew that have none open. Run after their instances were locked, before settle.sql.
-- Index: the primary key, interactions_item. Locks: the units. Returns: the units.
update stepwell.await_units u
set resolved = u.opened, in_flight = 0
where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled
  and not exists (select from stepwell.interactions q
                  where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                  offset 0)
returning u.id
