-- Close the open units of instances that have ended or continue elsewhere. Run after the instances were locked.
-- Keeps: a unit that has ended stays as it is; no interaction stays open (large units: as await_units/settle.sql).
-- Index: await_units_open, interactions_item.
-- Locks: units, then interactions.
-- Returns: the closed units that have continuations (await_units/drop_items.sql cancels them).
with closed as (
  update {schema}.await_units u
  set status = 'cancelled', finished_at = {schema}.now(), continuing = 0
  where u.instance_id = any ($1::bigint[]) and u.status = 'waiting'
  returning u.id, u.item_step, u.opened
), sized as materialized (
  -- Whether each is small enough to be closed here.
  select c.id, c.item_step,
         c.opened <= 1000
           and sum(c.opened) filter (where c.opened <= 1000) over (order by c.id) <= 5000 as is_small
  from closed c
), left_open as (
  insert into {schema}.cleanups (unit_id)
  select s.id from sized s where not s.is_small
  on conflict (unit_id) do nothing
  returning {schema}._notify('{schema}_cleanup', '')
), dropped as (
  update {schema}.interactions q
  set status = 'cancelled', finished_at = {schema}.now()
  where q.unit_id = any (array(select s.id from sized s where s.is_small))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select s.id from sized s where s.is_small and s.item_step is not null
