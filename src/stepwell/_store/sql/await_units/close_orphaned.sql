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
  returning u.id, u.item_step, u.opened
), {ctes sized, left_open, dropped of await_units/close}
)
select s.id, s.is_small from sized s
