-- Deliver signals: store each in its target's inbox, and wake the target if it awaits that name.
-- Keeps: the target is locked before it is judged, so that a delivery to a row that ends meanwhile finds no target
--   instead of a dead one; the wake is decided on the locked row, so that no park is missed; one effect per dedup key.
-- Index: the primary key (any (array[…]): see instances/commit.sql), instances_guard, signals_dedup.
-- Locks: the targets by id; waits for their commits.
-- Targets and queues are looked up in a hash and in an object, not joined (is true): see instances/start.sql.
-- Returns: one row per signal: its position, the target's id (null: no target), the id it was resolved to before the
--   lock (a key's holder that ended meanwhile may have a successor), and the queue of a target that may run.
with given as materialized (
  select (g.position - 1)::integer as position, g.name, g.payload, g.dedup_key,
         coalesce(g.id, (select i.id from stepwell.instances i
                         where i.tenant = g.tenant and i.key = g.key
                           and (i.key_scope = 'forever' or i.finished_at is null))) as id
  from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
       with ordinality as g(id, tenant, key, name, payload, dedup_key, position)
), targets as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any (array(select g.id from given g)) and i.status not in ('done', 'failed', 'cancelled')
  order by i.id
  for no key update
), stored as (
  insert into stepwell.signals (instance_id, sent_at, name, dedup_key, payload)
  select g.id, stepwell.now(), g.name, g.dedup_key, g.payload::jsonb
  from given g
  where (g.id in (select t.id from targets t)) is true
  order by g.position
  on conflict (instance_id, dedup_key) where dedup_key is not null do nothing
  returning instance_id, name
), arrived as materialized (
  select s.instance_id, array_agg(s.name) as names
  from stored s
  group by s.instance_id
), reached as (
  update stepwell.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and i.awaits && a.names then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and i.awaits && a.names then stepwell.now() else i.due_at end,
      deadline = case when i.status = 'awaiting_signal' and i.awaits && a.names then null else i.deadline end
  from arrived a
  where i.id = any (array[a.instance_id])
  returning i.id, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
), queues as materialized (
  select jsonb_object_agg(r.id, r.queue) as by_id from reached r
)
select g.position, case when g.id in (select t.id from targets t) then g.id end as target, g.id as resolved,
       (select q.by_id from queues q) ->> g.id::text as queue
from given g
order by g.position
