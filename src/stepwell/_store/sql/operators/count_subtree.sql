-- Tell whether a cancel concerns more than $2 rows, or may: an instance, all below it, and their continuations
-- (operators/find_subtree.sql). At most $2 + 1 rows of the tree are read.
-- Index: instances_parent, await_units_open, by probes. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: one row.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t
  cross join lateral (
    select c.id from {schema}.instances c
    where c.parent_id = t.id and c.parent_round is not null
    offset 0
  ) c
), first as materialized (
  select t.id from tree t limit $2::integer + 1
)
select count(*) + coalesce(sum(u.opened), 0) > $2::integer as is_large
from first f
left join lateral (
  select sum(u.opened) as opened
  from {schema}.await_units u
  where u.instance_id = f.id and u.status = 'waiting' and u.opened <= 1000
  offset 0
) u on true
