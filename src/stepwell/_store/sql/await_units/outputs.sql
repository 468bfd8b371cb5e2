-- Read the results of a unit's continuations, in item order, after an item.
-- Keeps: the order of the index (parent_round, which is null, has to be named in it), so that a page costs a page.
-- Index: instances_parent, the primary key.
-- Locks: none.
-- Returns: up to $4 rows: the item and the result.
select i.child_index as item, d.result::text as result
from {schema}.instances i
join {schema}.instance_data d on d.id = any (array[i.id])
where i.parent_id = $1 and i.parent_round is null and i.child_index > $3 and i.continues_unit_id = $2
  and i.status || '' = 'done'
order by i.parent_round, i.child_index
limit $4
