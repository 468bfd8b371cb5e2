-- Whether a key is occupied is said by the index that guards it, and no longer by a column of its own: a generated column
-- is made anew by every write of a row, also of the many that have no key
-- (docs/decisions/0022-the-guard-is-an-index.md).
-- Processes of the version before name the column in four statements, and are refused what goes by those from here on:
-- starts with keys, or of entries that are not alike; signals to a key, or with a dedup key; whatever is looked up by key.
-- A step of theirs that spawns such children would fail by it: stop their workers first.

-- At once as it is needed below: whoever has locked rows, and writes them next, would wait for us, and we for them.
lock table stepwell.instances in access exclusive mode;

-- One live instance per key, or one for ever; the address of a key.
create unique index instances_guarded on stepwell.instances (tenant, key)
  where key is not null and (key_scope = 'forever' or finished_at is null);
alter table stepwell.instances drop column guard;  -- and the index over it
alter index stepwell.instances_guarded rename to instances_guard;

-- The newest row that carried a key. By another condition than before, which says the same: who looks for the occupant
-- never goes through this one, where a key that was used often has many rows.
drop index stepwell.instances_key;
create index instances_key on stepwell.instances (tenant, key, id)
  where key_scope is not null;

-- The engine's own statements that have changed, for the SQL doors: see 0003_statements.
create or replace function stepwell._instances_start(text[], integer[], text[], text[], smallint[], interval[], timestamptz[], text[], text[], text[], text[], text[], bigint[], integer[], integer[], boolean[], text[])
returns table ("position" integer, "id" bigint, "queue" text, "later" boolean)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Insert new instances, in the order of the arrays, with their states.
-- Keeps: an entry whose key is occupied or buried is not inserted (its position is missing in the answer); keys are
--   inserted in their order, so that two batches with the same keys wait for one another in one direction only.
--   An entry without a key is always inserted; those with one are looked up in a hashed subplan, not joined: a join
--   of two CTEs is quadratic wherever the planner takes it for small.
--   $17: what each needs of limits, as in commit.sql; null for nearly every one. In a fair queue each has its share.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key; queues_fair, once.
-- Locks: none but the new rows; waits for whoever is inserting the same key.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, stepwell.now() + e.delay, stepwell.now()) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
              $15::integer[], $16::boolean[], $17::text[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, key, key_scope, concurrency_key, state, parent_id, parent_round, child_index,
                            unchecked, needs, position)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, key, key_scope, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, stepwell.now(), stepwell.now(),
         e.needs::jsonb ->> 0, e.needs::jsonb ->> 1, e.needs::jsonb ->> 2, coalesce((e.needs::jsonb ->> 3)::integer, 1),
         case when queue = any (array(select q.name from stepwell.queues q where q.fair_by is not null))
              then hashtextextended(tenant, 0) end
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant collate "C", e.key collate "C", e.position
  on conflict (tenant, key) where key is not null and (key_scope = 'forever' or finished_at is null) do nothing
  returning id
), stored as (
  insert into stepwell.instance_data (id, state, unchecked)
  select e.id, e.state::jsonb, coalesce(e.unchecked, false)
  from entries e
  where e.key is null or e.id in (select id from inserted)
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > stepwell.now() as later
from entries e
where e.key is null or e.id in (select id from inserted)
order by e.position;
end
$$;
revoke execute on function stepwell._instances_start from public;

create or replace function stepwell._instances_find_occupants(text[], text[])
returns table ("position" integer, "id" bigint)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Tell who occupies keys: the live instance, or the one whose tombstone it is. Index: instances_guard, tombstones.
-- Locks: none. Returns: position and id; a key that has become free meanwhile is missing.
select (k.position - 1)::integer as position, coalesce(i.id, t.instance_id) as id
from unnest($1::text[], $2::text[]) with ordinality as k(tenant, key, position)
left join stepwell.instances i
  on i.tenant = k.tenant and i.key = k.key and (i.key_scope = 'forever' or i.finished_at is null)
left join stepwell.tombstones t on t.tenant = k.tenant and t.key = k.key
where i.id is not null or t.instance_id is not null;
end
$$;
revoke execute on function stepwell._instances_find_occupants from public;

create or replace function stepwell._instances_find_key(text, text)
returns table ("id" bigint)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Resolve a key: the live occupant, else the newest row that carried it.
-- Index: one probe of instances_guard, then one of instances_key, however often the key was used. Locks: none.
-- Returns: one row; its id is null if no row carries the key.
select coalesce(
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.key = $2 and (i.key_scope = 'forever' or i.finished_at is null)),
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.key = $2 and i.key_scope is not null
   order by i.id desc
   limit 1)) as id;
end
$$;
revoke execute on function stepwell._instances_find_key from public;

create or replace function stepwell._signals_deliver(bigint[], text[], text[], text[], text[], text[])
returns table ("position" integer, "target" bigint, "resolved" bigint, "queue" text)
language plpgsql as $$
#variable_conflict use_column
begin
return query
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
order by g.position;
end
$$;
revoke execute on function stepwell._signals_deliver from public;
