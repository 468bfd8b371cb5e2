-- Delete ended instances whose machine's retention is over, up to 1,000 per machine, with inbox, questions and side
-- row.
-- Keeps: one pruner acts at a time (a try-lock, to the end of the statement); what a live parent still needs, and what
--   an answer has come to as long as the instance that asked is there: retried or restarted, it reads all of them;
--   keys of scope 'forever' leave a tombstone.
-- Index: instances_finished, one range per machine. Locks: the rows, skip locked. Machines that nobody
--   ever registered are kept. Returns: how many were deleted, and the largest number of one machine.
with elected as materialized (
  select pg_try_advisory_xact_lock(hashtextextended('stepwell.duty.pruner', 0)) as is_mine
), machines as materialized (
  select m.name, m.retention
  from stepwell.machines m
  where m.active and m.retention is not null and (select e.is_mine from elected e)
), old as materialized (
  select o.*
  from machines m
  cross join lateral (
    select i.id, i.machine, i.tenant, i.key, i.key_scope
    from stepwell.instances i
    where i.machine = m.name and i.status in ('done', 'failed', 'cancelled')
      and i.finished_at < stepwell.now() - m.retention
      and not exists (select from stepwell.instances p
                      where p.id = i.parent_id
                        and (p.status not in ('done', 'failed', 'cancelled') or i.continues_unit_id is not null)
                      offset 0)
    order by i.finished_at, i.id
    limit 1000
    for no key update of i skip locked
  ) o
), buried as (
  insert into stepwell.tombstones (tenant, key, instance_id, buried_at)
  select o.tenant, o.key, o.id, stepwell.now()
  from old o
  where o.key_scope = 'forever'
  on conflict (tenant, key) do nothing
), emptied as (
  delete from stepwell.signals s using old o where s.instance_id = any (array[o.id])
), forgotten as (
  delete from stepwell.await_units u using old o where u.instance_id = any (array[o.id])
  returning u.id
), unasked as (
  delete from stepwell.interactions q using forgotten f where q.unit_id = any (array[f.id])
), stripped as (
  delete from stepwell.instance_data d using old o where d.id = any (array[o.id])
), gone as (
  delete from stepwell.instances i using old o where i.id = any (array[o.id])
  returning i.machine
), counted as (
  select g.machine, count(*)::integer as number
  from gone g
  group by g.machine
)
select coalesce(sum(number), 0)::integer as deleted, coalesce(max(number), 0)::integer as largest
from counted
