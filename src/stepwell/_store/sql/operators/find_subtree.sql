-- Find the rows that a cancel concerns and that have not ended: an instance, its continuations and, if $2, all below
-- it.
-- Keeps: only continuations that have not ended are read (a million may have ended); they have no children, and
--   children have a round. Those of a unit with more than 1,000 are left to await_units/clean_up.sql, which
--   await_units/close.sql asks for.
-- Index: the primary key, instances_parent, await_units_open, instances_continuing, by probes: a join with the tree on
--   its inner side is quadratic. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: id, concurrency key and parent of each.
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
  where $2::boolean
)
select i.id, i.concurrency_key, i.parent_id
from tree t
cross join lateral (
  select i.id, i.concurrency_key, i.parent_id
  from {schema}.instances i
  where i.id = t.id and i.status || '' not in ('done', 'failed', 'cancelled')
  offset 0
) i
union all
select i.id, i.concurrency_key, i.parent_id
from tree t
cross join lateral (
  select u.id
  from {schema}.await_units u
  where u.instance_id = t.id and u.status = 'waiting' and u.opened <= 1000
  offset 0
) u
cross join lateral (
  select i.id, i.concurrency_key, i.parent_id
  from {schema}.instances i
  where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
  offset 0
) i
