-- Let an answer that goes on by itself be led elsewhere by an operator: one that had come to its end is counted at its
-- unit once more. Run before operators/retry.sql or restart.sql, after it and the instance that asked were locked.
-- Keeps: nothing runs for a unit that has ended: nobody would wait for it.
-- Index: the primary keys. Locks: the unit, the row (ours already).
-- Returns: the instance that asked, and whether its unit waits; nothing if it is none that goes on by itself.
with item as materialized (
  select i.id, i.parent_id, i.joined, u.id as unit_id, coalesce(u.status, '') = 'waiting' as waits
  from stepwell.instances i
  left join stepwell.await_units u on u.id = any (array[i.continues_unit_id])
  where i.id = $1 and i.continues_unit_id is not null
), counted as (
  update stepwell.await_units u
  set continuing = u.continuing + 1
  from item m
  where u.id = any (array[m.unit_id]) and m.waits and m.joined
), unjoined as (
  update stepwell.instances i
  set joined = false
  from item m
  where i.id = any (array[m.id]) and m.waits and m.joined
)
select m.parent_id, m.waits from item m
