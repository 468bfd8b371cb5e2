-- Lock the parents at which a group commit counts ends, except those that another transaction holds: their children
-- leave the batch and are committed later.
-- Keeps: a parent that was pruned delays nothing; the ends of its children are counted nowhere.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the parents, skip locked.
-- Returns: the ids that were locked, or do not exist.
with locked as materialized (
  select i.id
  from {schema}.instances i
  where i.id = any ($1::bigint[])
  order by i.id
  for no key update skip locked
)
select l.id
from locked l
union all
select p.id
from unnest($1::bigint[]) as p(id)
where not exists (select from {schema}.instances i where i.id = p.id offset 0)
