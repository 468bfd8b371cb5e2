-- Correct the number of children a parent waits for, where some were duplicates and were not inserted.
-- Keeps: if none was inserted, the parent is runnable at once. Run in the transaction of the spawn.
-- Index: the primary key.
-- Locks: the parents (locked already).
-- Returns: id and queue of the runnable parents.
with counts as materialized (
  select c.id, c.number
  from unnest($1::bigint[], $2::integer[]) as c(id, number)
), settled as (
  update {schema}.instances i
  set children_pending = c.number,
      status = case when c.number = 0 then 'runnable' else i.status end,
      due_at = case when c.number = 0 then {schema}.instant() else i.due_at end
  from counts c
  where i.id = any (array[c.id])
  returning i.id, i.queue, i.status
)
select id, queue
from settled
where status = 'runnable'
