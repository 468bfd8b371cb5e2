-- Find what a cancel concerns: an instance, its answers that go on by themselves and, if $2, all below it, as far as
-- they have not ended.
-- Index: the primary key, instances_parent. Locks: none. Returns: id, concurrency key and parent of each.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t join stepwell.instances c on c.parent_id = t.id
  where $2::boolean or c.continues_unit_id is not null
)
select i.id, i.concurrency_key, i.parent_id
from tree t join stepwell.instances i on i.id = t.id
where i.status not in ('done', 'failed', 'cancelled')
