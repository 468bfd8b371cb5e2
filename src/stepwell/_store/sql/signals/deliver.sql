-- Deliver signals: store each in its target's inbox, and wake the target if it awaits that name.
-- Keeps: the target is locked before it is judged, so that a target that ends meanwhile is not reached; the wake is
--   decided on the locked row, so that no park is missed; one effect per dedup key; an id with a tenant that is not its
--   own reaches no target (an id without a tenant reaches any).
-- Index: the primary key, instances_guard, signals_dedup. Targets and queues are looked up in a hash and in an object,
--   not joined: see docs/internals/sql-plans.md.
-- Locks: the targets by id; waits for other transactions.
-- Returns: one row per signal: its position; the target's id (null: no target); the id it was resolved to before the
--   lock (the key of an instance that ended meanwhile may have a new holder); and the queue of a target that may run.
with given as materialized (
  -- The signals, each with the id of its target.
  select (g.position - 1)::integer as position, g.name, g.payload, g.dedup_key,
         case when g.id is null then (select i.id from {schema}.instances i
                                      where i.tenant = g.tenant and i.key = g.key
                                        and (i.key_scope = 'forever' or i.finished_at is null))
              when g.tenant is null then g.id
              else (select i.id from {schema}.instances i
                    where i.id = any (array[g.id]) and i.tenant || '' = g.tenant) end as id
  from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
       with ordinality as g(id, tenant, key, name, payload, dedup_key, position)
), targets as materialized (
  -- The targets that live, locked.
  select i.id
  from {schema}.instances i
  where i.id = any (array(select g.id from given g)) and i.status not in ('done', 'failed', 'cancelled')
  order by i.id
  for no key update
), stored as (
  insert into {schema}.signals (instance_id, sent_at, name, dedup_key, payload)
  select g.id, {schema}.now(), g.name, g.dedup_key, g.payload::jsonb
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
  -- Targets, woken if they await one of the names.
  update {schema}.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and i.awaits && a.names then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and i.awaits && a.names then {schema}.now() else i.due_at end,
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
