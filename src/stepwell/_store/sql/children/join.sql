-- Count ended children at their parents, and let parents go on that wait for no more.
-- Run in the transaction that ended the children, after lock_parents.sql. Keeps: a child of an earlier round counts
--   nowhere. Index: the primary key. Locks: the parents (ours already). Returns: id and queue of parents that go on.
with ends as materialized (
  select e.parent_id, e.parent_round, count(*)::integer as number
  from unnest($1::bigint[], $2::integer[]) as e(parent_id, parent_round)
  group by e.parent_id, e.parent_round
), counted as (
  update stepwell.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then stepwell.now() else i.due_at end
  from ends e
  where i.id = any (array[e.parent_id]) and i.round = e.parent_round
  returning i.id, i.queue, i.status, i.hold, i.children_pending
)
select id, queue
from counted
where status = 'runnable' and hold is null and children_pending = 0
