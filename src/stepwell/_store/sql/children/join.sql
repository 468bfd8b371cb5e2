-- Count ended children at their parents, and wake parents when their last child has ended.
-- Keeps: a child of an earlier round is not counted. Run in the transaction that ended the children, after
--   children/lock_parents.sql.
-- Index: the primary key.
-- Locks: the parents (locked already).
-- Returns: id and queue of the woken parents.
with ends as materialized (
  select e.parent_id, e.parent_round, count(*)::integer as number
  from unnest($1::bigint[], $2::integer[]) as e(parent_id, parent_round)
  group by e.parent_id, e.parent_round
), counted as (
  update {schema}.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then {schema}.instant() else i.due_at end
  from ends e
  where i.id = any (array[e.parent_id]) and i.round = e.parent_round
  returning i.id, i.queue, i.status, i.hold, i.children_pending
)
select id, queue
from counted
where status = 'runnable' and hold is null and children_pending = 0
