-- Close or delete one page of the interactions of a large unit that ended, or was deleted: $1 of them by their numbers;
-- and cancel the continuations among these.
-- Keeps: two workers get different units (skip locked); the start of the next page is committed with a page.
--   Continuations are cancelled as in await_units/drop_items.sql. A unit that is asked again is not among these
--   (await_units/forget_cleanup.sql).
-- Index: cleanups_pkey, the primary keys, interactions_item, instances_parent.
-- Locks: the cleanup, skip locked; the interactions; the continuations, skip locked.
-- Returns: one row, or none if nothing is left to do: the keys and limits that cancelled rows held or waited for.
with taken as materialized (
  -- The first unit that no other worker cleans up.
  select c.unit_id, c.is_deletion, c.next_item
  from {schema}.cleanups c
  order by c.unit_id
  limit 1
  for no key update skip locked
), page as materialized (
  -- The numbers of this page.
  select t.unit_id, t.is_deletion, t.next_item as first, t.next_item + $1::integer as below, u.instance_id,
         u.item_step, t.next_item + $1::integer >= coalesce(u.opened, 0) as is_last
  from taken t
  left join {schema}.await_units u on u.id = any (array[t.unit_id])
), closed as (
  update {schema}.interactions q
  set status = 'cancelled', finished_at = {schema}.now()
  from page p
  where not p.is_deletion and q.unit_id = p.unit_id and q.item >= p.first and q.item < p.below
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
), deleted as (
  delete from {schema}.interactions q
  using page p
  where p.is_deletion and q.unit_id = p.unit_id and q.item >= p.first and q.item < p.below
), live as materialized (
  -- Continuations of this page that have not ended.
  select l.id, l.was
  from page p
  cross join lateral (
    select i.id, i.status as was
    from {schema}.instances i
    where i.parent_id = p.instance_id and i.parent_round is null and i.child_index >= p.first
      and i.child_index < p.below and i.continues_unit_id = p.unit_id
      and i.status || '' not in ('done', 'failed', 'cancelled')
    for no key update skip locked
  ) l
  where p.item_step is not null
), {ctes cancelled, stored of await_units/drop_items}
), moved as (
  update {schema}.cleanups c
  set next_item = p.below
  from page p
  where c.unit_id = any (array[p.unit_id]) and not p.is_last
), finished as (
  delete from {schema}.cleanups c
  using page p
  where c.unit_id = any (array[p.unit_id]) and p.is_last
), forgotten as (
  -- The deleted unit itself, after its last page.
  delete from {schema}.await_units u
  using page p
  where u.id = any (array[p.unit_id]) and p.is_deletion and p.is_last
), told as materialized (
  select c.concurrency_key, c.concurrency_limit,
         case when c.was_executing
              then {schema}._notify('{schema}_revoked', c.id || ' ' || c.fence)::text end as revoked,
         case when c.watched then {schema}._notify('{schema}_settled', c.id::text)::text end as settled
  from cancelled c
)
select array(select t.concurrency_key from told t where t.concurrency_key is not null) as keys,
       array(select t.concurrency_limit from told t where t.concurrency_limit is not null) as limits
from page p
