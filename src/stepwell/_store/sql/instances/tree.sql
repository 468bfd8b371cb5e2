-- Read an instance's whole family: from the topmost parent down, depth first; continuations in the order of their
-- items.
-- Index: the primary key, instances_parent.
-- Locks: none.
-- Returns: up to 10,000 rows with their depth.
with recursive up(id, parent_id) as (
  select i.id, i.parent_id from {schema}.instances i where i.id = $1
  union all
  select p.id, p.parent_id from up u join {schema}.instances p on p.id = u.parent_id
), down(id, depth, path) as (
  select u.id, 0, array[u.id]
  from up u
  where u.parent_id is null or not exists (select from {schema}.instances p where p.id = u.parent_id)
  union all
  select c.id, d.depth + 1,
         d.path || array[coalesce(c.continues_unit_id, 0),
                         case when c.continues_unit_id is null then c.id else c.child_index end, c.id]
  from down d join {schema}.instances c on c.parent_id = d.id
)
select d.id, d.depth
from down d
order by d.path
limit 10000
