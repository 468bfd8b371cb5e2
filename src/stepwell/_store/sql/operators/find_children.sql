-- Find a page of the children of instances, ended or not: up to $4; of the first instance in $1 only those after the
-- round $2 and the index $3. For large trees, level by level; operators/find_subtree.sql reads a tree at once.
-- Index: instances_parent, one probe per instance, in the given order, and no further than the page.
-- Locks: none.
-- Returns: id, concurrency key, parent, round and index of each, and whether it has ended.
select c.id, c.concurrency_key, c.parent_id, c.parent_round, c.child_index, c.has_ended
from (select g.id, g.place from unnest($1::bigint[]) with ordinality as g(id, place) order by g.place) p
cross join lateral (
  select c.id, c.concurrency_key, c.parent_id, c.parent_round, c.child_index,
         c.status in ('done', 'failed', 'cancelled') as has_ended
  from {schema}.instances c
  where c.parent_id = p.id and c.parent_round is not null
    and (c.parent_round, c.child_index) > (case when p.place = 1 then $2::integer else -1 end,
                                           case when p.place = 1 then $3::integer else -1 end)
  order by c.parent_round, c.child_index
  limit $4::integer
) c
order by p.place, c.parent_round, c.child_index
limit $4::integer
