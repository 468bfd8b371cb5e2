-- Find what a cancel concerns: an instance, its answers that go on by themselves and, if $2, all below it, as far as
-- they have not ended.
-- Keeps: of answers only those are read that have not ended (there may be a million that have): children have a round,
--   they have none.
-- Index: the primary key, instances_parent, await_units_open, instances_continuing. Locks: none.
-- Returns: id, concurrency key and parent of each.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t join stepwell.instances c on c.parent_id = t.id and c.parent_round is not null
  where $2::boolean
)
select i.id, i.concurrency_key, i.parent_id
from tree t join stepwell.instances i on i.id = t.id
where i.status not in ('done', 'failed', 'cancelled')
union all
select i.id, i.concurrency_key, i.parent_id
from tree t
join stepwell.await_units u on u.instance_id = t.id and u.status = 'waiting'
join stepwell.instances i on i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
