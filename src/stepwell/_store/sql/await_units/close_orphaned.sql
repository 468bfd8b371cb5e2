-- Close units that their instance neither waits for nor fills. Run after the instances were locked.
-- Keeps: no interaction stays open (large units: as await_units/settle.sql).
-- Index: the primary keys, interactions_item.
-- Locks: units, then interactions.
-- Returns: the closed units, and whether all of each is closed.
with closed as (
  update {schema}.await_units u
  set status = 'cancelled', finished_at = {schema}.now(), continuing = 0
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting'
    and not exists (select from {schema}.instances i
                    where i.id = u.instance_id and u.id in (i.await_unit_id, i.filling_unit_id)
                    offset 0)
  returning u.id, u.opened
), sized as materialized (
  select c.id,
         c.opened <= 1000
           and sum(c.opened) filter (where c.opened <= 1000) over (order by c.id) <= 5000 as is_small
  from closed c
), left_open as (
  insert into {schema}.cleanups (unit_id)
  select s.id from sized s where not s.is_small
  on conflict (unit_id) do nothing
  returning pg_notify('{schema}_cleanup', '')
), dropped as (
  update {schema}.interactions q
  set status = 'cancelled', finished_at = {schema}.now()
  where q.unit_id = any (array(select s.id from sized s where s.is_small))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select s.id, s.is_small from sized s
