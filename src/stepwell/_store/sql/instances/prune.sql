-- Delete ended instances past their machine's retention, up to 1,000 per machine, with inbox, await units and side row.
-- Keeps: one pruner acts at a time. A child stays as long as its parent lives, a continuation as long as the instance
--   that asked exists: that one reads all results again when retried or restarted. Keys of scope 'forever' leave a
--   tombstone. Units with more than 1,000 interactions, and those beyond 20,000 in all, are left to
--   await_units/clean_up.sql. Instances with more than $1 signals, and those beyond 20 times as many in all, are only
--   locked and returned; their inboxes are deleted in pages (signals/prune.sql), and then this runs again in the same
--   transaction. Machines that were never registered are not pruned.
-- Index: instances_finished, one range per machine; signals_inbox.
-- Locks: a row of locks, and then the rows, skip locked.
-- Returns: how many were deleted, the largest number of one machine, and the instances with inboxes that have to be
--   deleted first.
with elected as materialized (
  -- A row, if no other pruner is at work.
  select l.number
  from {schema}.locks l
  where l.number = {schema}._lock_key('engine', 'pruner')
  for no key update skip locked
), machines as materialized (
  select m.name, m.retention
  from {schema}.machines m
  where m.active and m.retention is not null and exists (select from elected)
), found as materialized (
  select o.*
  from machines m
  cross join lateral (
    select i.id, i.machine, i.tenant, i.key, i.key_scope
    from {schema}.instances i
    where i.machine = m.name and i.status in ('done', 'failed', 'cancelled')
      and i.finished_at < {schema}.now() - m.retention
      and not exists (select from {schema}.instances p
                      where p.id = i.parent_id
                        and (p.status not in ('done', 'failed', 'cancelled') or i.continues_unit_id is not null)
                      offset 0)
    order by i.finished_at, i.id
    limit 1000
    for no key update of i skip locked
  ) o
), sized as materialized (
  -- Whether the inbox is small enough to be deleted here.
  select f.*, n.number <= $1::integer
              and sum(n.number) filter (where n.number <= $1::integer) over (order by f.id) <= 20 * $1::bigint
                as is_small
  from found f
  cross join lateral (
    select count(*) as number
    from (select from {schema}.signals s where s.instance_id = f.id limit $1::bigint + 1) s
  ) n
), old as materialized (
  select z.* from sized z where z.is_small
), tombstoned as (
  insert into {schema}.tombstones (tenant, key, instance_id, buried_at)
  select o.tenant, o.key, o.id, {schema}.now()
  from old o
  where o.key_scope = 'forever'
  on conflict (tenant, key) do nothing
), emptied as (
  delete from {schema}.signals s using old o where s.instance_id = any (array[o.id])
), asked as materialized (
  -- Whether the unit is small enough to be deleted here.
  select u.id,
         u.opened <= 1000
           and sum(u.opened) filter (where u.opened <= 1000) over (order by u.id) <= 20000
           and not exists (select from {schema}.cleanups k where k.unit_id = u.id offset 0) as is_small
  from old o
  join {schema}.await_units u on u.instance_id = any (array[o.id])
), left_over as (
  insert into {schema}.cleanups (unit_id, is_deletion)
  select a.id, true from asked a where not a.is_small
  on conflict (unit_id) do update set is_deletion = true, next_item = 0
  returning {schema}._notify('{schema}_cleanup', '')
), forgotten as (
  delete from {schema}.await_units u using asked a where a.is_small and u.id = any (array[a.id])
  returning u.id
), unasked as (
  delete from {schema}.interactions q using forgotten f where q.unit_id = any (array[f.id])
), stripped as (
  delete from {schema}.instance_data d using old o where d.id = any (array[o.id])
), gone as (
  delete from {schema}.instances i using old o where i.id = any (array[o.id])
  returning i.machine
), counted as (
  select g.machine, count(*)::integer as number
  from gone g
  group by g.machine
)
select coalesce(sum(number), 0)::integer as deleted, coalesce(max(number), 0)::integer as largest,
       array(select z.id from sized z where not z.is_small) as large
from counted
