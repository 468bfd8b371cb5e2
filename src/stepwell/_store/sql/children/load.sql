-- Load a page of the children of the latest round of each parent, in spec order.
-- $3: the last index that was read. $4: children of a parent in one page.
-- Index: instances_parent, driven from the parents, from that index on. See docs/internals/sql-plans.md.
-- Locks: none.
select c.parent_id, c.child_index as index, c.id, c.key, c.machine, c.version, c.status,
       d.state::text as state, d.result::text as result, d.error::text as error
from unnest($1::bigint[], $2::integer[]) as p(id, round)
cross join lateral (
  select i.*
  from {schema}.instances i
  where i.parent_id = p.id and i.parent_round = p.round and i.child_index > $3::integer
  order by i.child_index
  limit $4::integer
) c
join {schema}.instance_data d on d.id = any (array[c.id])
order by c.parent_id, c.child_index
