-- Count anew for how many children parents wait, and wake those that wait for none.
-- Keeps: a child that was counted (joined), and retried since, is not waited for. Run in a transaction that has locked
--   the parents before this statement, so that no child ends or is added meanwhile.
-- Index: the primary key; instances_parent.
-- Locks: the parents (locked already).
-- Returns: id and queue of the woken parents.
with counted as materialized (
  select i.id, (select count(*)
                from {schema}.instances c
                where c.parent_id = i.id and c.parent_round = i.round
                  and c.status || '' not in ('done', 'failed', 'cancelled') and not c.joined)::integer as number
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'awaiting_children'
), released as (
  update {schema}.instances i
  set children_pending = c.number,
      status = case when c.number = 0 then 'runnable' else i.status end,
      due_at = case when c.number = 0 then {schema}.now() else i.due_at end
  from counted c
  where i.id = any (array[c.id])
  returning i.id, i.queue, i.status
)
select id, queue
from released
where status = 'runnable'
