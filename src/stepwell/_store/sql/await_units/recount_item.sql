-- Prepare a continuation for an operator's retry or restart: one that had ended is counted as continuing once more. Run
-- before operators/retry.sql or restart.sql, after it and the instance that asked were locked.
-- Keeps: nothing is counted at a unit that has ended, since nothing waits for it.
-- Index: the primary keys.
-- Locks: the unit, the row (locked already).
-- Returns: the instance that asked, and whether its unit waits; nothing if the row is no continuation.
with item as materialized (
  select i.id, i.parent_id, i.joined, u.id as unit_id, coalesce(u.status, '') = 'waiting' as waits
  from {schema}.instances i
  left join {schema}.await_units u on u.id = any (array[i.continues_unit_id])
  where i.id = $1 and i.continues_unit_id is not null
), counted as (
  update {schema}.await_units u
  set continuing = u.continuing + 1
  from item m
  where u.id = any (array[m.unit_id]) and m.waits and m.joined
), unjoined as (
  update {schema}.instances i
  set joined = false
  from item m
  where i.id = any (array[m.id]) and m.waits and m.joined
)
select m.parent_id, m.waits from item m
