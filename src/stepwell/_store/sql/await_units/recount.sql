-- Count the interactions of units anew: of units with none open and no living continuation but those just started ($2);
-- and of units with queued interactions although the window has room, or the number that is out is wrong.
-- Keeps: no check constraint on the numbers is broken, whatever was changed by hand. Run after the instances were
--   locked and await_units/start_missing.sql, before await_units/settle.sql, which sends the next ones.
-- Index: the primary key, interactions_item, instances_continuing, instances_parent.
-- Locks: the units.
-- Returns: the units, and whether a continuation has failed.
with counted as materialized (
  select u.id, n.queued, n.queued + n.out as open, least(n.out, u."window", u.opened) as out
  from {schema}.await_units u
  cross join lateral (
    select (count(*) filter (where q.status = 'queued'))::integer as queued,
           (count(*) filter (where q.status <> 'queued'))::integer as out
    from {schema}.interactions q
    where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
  ) n
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled
)
update {schema}.await_units u
set resolved = greatest(u.opened - n.open, 0), in_flight = n.out,
    continuing = case when n.open > 0 then u.continuing else cardinality(array_positions($2::bigint[], u.id)) end
from counted n
where u.id = any (array[n.id])
  and (n.queued > 0 and (u.in_flight <> n.out or u.in_flight < u."window")
       or n.open = 0 and (u.id = any ($2::bigint[])
                          or not exists (select from {schema}.instances c
                                         where c.continues_unit_id = u.id
                                           and c.status not in ('done', 'failed', 'cancelled')
                                         offset 0)))
returning u.id,
          u.item_step is not null and exists (select from {schema}.instances c
                                              where c.parent_id = u.instance_id and c.parent_round is null
                                                and c.continues_unit_id = u.id
                                                and c.status || '' in ('failed', 'cancelled')
                                              offset 0) as has_failed
