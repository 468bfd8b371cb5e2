-- The schema `stepwell` as all migrations together leave it, for reading. Generated; tests hold it equal to them:
--   .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
-- Why things are as they are stands in the migrations.

create schema stepwell;

CREATE OR REPLACE FUNCTION stepwell._check_entries(entries jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
AS $function$
declare
  fields constant jsonb := '{"machine": "string", "version": "number", "step": "string", "state": null, "key": "string",
    "key_scope": "string", "queue": "string", "priority": "number", "delay": "number", "at": "string",
    "concurrency_key": "string", "tenant": "string", "checked": "boolean"}';
  largest constant bigint := (select max_payload from stepwell.meta);
  bad record;
  checked jsonb;
begin
  if entries is null or jsonb_typeof(entries) <> 'array' then
    perform stepwell._refuse('SW001', 'entries', 'expected an array of objects');
  end if;

  select format('entries[%s]', e.place - 1) as place, s.field, s.problem
  into bad
  from jsonb_array_elements(entries) with ordinality as e(entry, place)
  cross join lateral stepwell._shape_problem(e.entry, fields) s
  where s.problem is not null
  order by e.place
  limit 1;
  if found then
    perform stepwell._refuse('SW001', coalesce(nullif(bad.field, ''), bad.place),
                             bad.problem || case when bad.field = '' then '' else format(' (in %s)', bad.place) end);
  end if;

  select r.code, r.field, r.problem || case when jsonb_array_length(entries) > 1
                                                then format(' (in entries[%s])', e.place - 1) else '' end as problem
  into bad
  from jsonb_array_elements(entries) with ordinality as e(entry, place)
  left join stepwell.machines m
    on m.name = e.entry ->> 'machine'
   and case when e.entry ->> 'version' is null then m.active else m.version = (e.entry ->> 'version')::numeric end
  cross join lateral (values
    ('SW001', 'machine', case when e.entry ->> 'machine' is null then 'is missing; name the machine to start' end),
    ('SW002', 'machine', case when m.name is null then format(
      '%L%s is not known to this database; run stepwell migrate --app …, or start a worker that has it',
      e.entry ->> 'machine', ' version ' || (e.entry ->> 'version')) end),
    ('SW003', 'step', case when e.entry ->> 'step' <> all (m.steps) then format(
      'machine %L has no step %L (it has: %s)', m.name, e.entry ->> 'step', array_to_string(m.steps, ', ')) end),
    ('SW001', 'key', stepwell._name_problem(e.entry ->> 'key')),
    ('SW001', 'key_scope', case when e.entry ->> 'key_scope' not in ('live', 'forever') then format(
      '%L is not allowed; it is ''live'', ''forever'' or null', e.entry ->> 'key_scope') end),
    ('SW001', 'queue', stepwell._name_problem(e.entry ->> 'queue')),
    ('SW001', 'priority', case
      when (e.entry ->> 'priority')::numeric not between -32768 and 32767
        or (e.entry ->> 'priority')::numeric % 1 <> 0
      then format('%s is no whole number from -32768 to 32767 (lower first)', e.entry ->> 'priority') end),
    ('SW001', 'delay', case
      when e.entry ->> 'at' is not null and e.entry ->> 'delay' is not null
      then 'both delay and at are given; give one of them'
      when (e.entry ->> 'delay')::numeric not between 0 and 36500 * 86400.0
      then format('%s is out of range (0 to 36500 days, in seconds)', e.entry ->> 'delay') end),
    ('SW001', 'at', case
      when e.entry ->> 'at' !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)$'
        or e.entry ->> 'at' > '9000'
      then format('%L is no time with a time zone up to the year 9000, like 2030-01-31T12:00:00Z',
                  e.entry ->> 'at') end),
    ('SW001', 'concurrency_key', stepwell._name_problem(e.entry ->> 'concurrency_key')),
    ('SW001', 'tenant', stepwell._name_problem(e.entry ->> 'tenant', true)),
    ('SW004', 'state', case
      when e.entry ->> 'checked' is distinct from 'true' and octet_length(e.entry ->> 'state') > largest
      then format('%s bytes are more than max_payload (%s); store a reference instead',
                  octet_length(e.entry ->> 'state'), largest) end)
  ) r(code, field, problem)
  where r.problem is not null
  order by e.place
  limit 1;
  if found then
    perform stepwell._refuse(bad.code, bad.field, bad.problem);
  end if;

  select jsonb_agg(jsonb_build_object(
           'position', e.place - 1, 'machine', m.name, 'version', m.version,
           'step', coalesce(e.entry ->> 'step', m.initial), 'queue', coalesce(e.entry ->> 'queue', m.queue),
           'priority', coalesce((e.entry ->> 'priority')::integer, 0),
           'delay', e.entry ->> 'delay', 'at', e.entry ->> 'at', 'tenant', coalesce(e.entry ->> 'tenant', ''),
           'key', case when scope is not null then e.entry ->> 'key' end,
           'key_scope', case when e.entry ->> 'key' is not null then scope end,
           'concurrency_key', e.entry ->> 'concurrency_key',
           'state', case when is_checked then e.entry -> 'state'
                         else coalesce(nullif(e.entry -> 'state', 'null'), '{}') end,
           'unchecked', not is_checked) order by e.place)
  into checked
  from jsonb_array_elements(entries) with ordinality as e(entry, place)
  join stepwell.machines m
    on m.name = e.entry ->> 'machine'
   and case when e.entry ->> 'version' is null then m.active else m.version = (e.entry ->> 'version')::numeric end
  cross join lateral (
    select case when e.entry ? 'key_scope' then e.entry ->> 'key_scope' else 'live' end,
           coalesce((e.entry ->> 'checked')::boolean, false)) s(scope, is_checked);
  return coalesce(checked, '[]');
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._check_isolation()
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform stepwell._refuse('SW005', 'connection', format(
      'its transaction is %s; start, signal and cancel need READ COMMITTED: use another transaction for them',
      upper(current_setting('transaction_isolation'))));
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._children_join(bigint[], integer[])
 RETURNS TABLE(id bigint, queue text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Count ended children at their parents, and let parents go on that wait for no more.
-- Run in the transaction that ended the children, after lock_parents.sql. Keeps: a child of an earlier round counts
--   nowhere. Index: the primary key. Locks: the parents (ours already). Returns: id and queue of parents that go on.
with ends as materialized (
  select e.parent_id, e.parent_round, count(*)::integer as number
  from unnest($1::bigint[], $2::integer[]) as e(parent_id, parent_round)
  group by e.parent_id, e.parent_round
), counted as (
  update stepwell.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then stepwell.now() else i.due_at end
  from ends e
  where i.id = any (array[e.parent_id]) and i.round = e.parent_round
  returning i.id, i.queue, i.status, i.hold, i.children_pending
)
select id, queue
from counted
where status = 'runnable' and hold is null and children_pending = 0;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_buried(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find, among just inserted keyed instances, those whose key was buried while we waited for its last row's deletion.
-- Run in the transaction of start.sql, with a fresh snapshot.
-- Index: the primary key, driven from the ids; tombstones, one probe per row (offset 0: never joined). Locks: none.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
  and exists (select from stepwell.tombstones t
              where t.tenant = i.tenant and t.key = i.key
              offset 0);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_key(text, text)
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Resolve a key: the live occupant, else the newest row that carried it.
-- Index: one probe of instances_guard, then one of instances_key, however often the key was used. Locks: none.
-- Returns: one row; its id is null if no row carries the key.
select coalesce(
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.guard = $2),
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.key = $2 and i.key_scope is not null
   order by i.id desc
   limit 1)) as id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_occupants(text[], text[])
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Tell who occupies keys: the live instance, or the one whose tombstone it is. Index: instances_guard, tombstones.
-- Locks: none. Returns: position and id; a key that has become free meanwhile is missing.
select (k.position - 1)::integer as position, coalesce(i.id, t.instance_id) as id
from unnest($1::text[], $2::text[]) with ordinality as k(tenant, key, position)
left join stepwell.instances i on i.tenant = k.tenant and i.guard = k.key
left join stepwell.tombstones t on t.tenant = k.tenant and t.key = k.key
where i.id is not null or t.instance_id is not null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_start(text[], integer[], text[], text[], smallint[], interval[], timestamp with time zone[], text[], text[], text[], text[], text[], bigint[], integer[], integer[])
 RETURNS TABLE("position" integer, id bigint, queue text, later boolean)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Insert new instances, in the order of the arrays, with their states.
-- Keeps: an entry whose key is occupied or buried is not inserted (its position is missing in the answer); keys are
--   inserted in their order, so that two batches with the same keys wait for one another in one direction only.
--   An entry without a key is always inserted; those with one are looked up in a hashed subplan, not joined: a join
--   of two CTEs is quadratic wherever the planner takes it for small.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key.
-- Locks: none but the new rows; waits for whoever is inserting the same key.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, stepwell.now() + e.delay, stepwell.now()) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
              $15::integer[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, key, key_scope, concurrency_key, state, parent_id, parent_round, child_index,
                            position)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, key, key_scope, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, stepwell.now(), stepwell.now()
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant, e.key, e.position
  on conflict (tenant, guard) where guard is not null do nothing
  returning id
), stored as (
  insert into stepwell.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
  where e.key is null or e.id in (select id from inserted)
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > stepwell.now() as later
from entries e
where e.key is null or e.id in (select id from inserted)
order by e.position;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_unstart(bigint[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
-- Take back instances that were inserted in this very transaction. Index: the primary keys. Locks: these rows.
with gone as (
  delete from stepwell.instances i
  where i.id = any ($1::bigint[])
  returning i.id
)
delete from stepwell.instance_data d
using gone g
where d.id = any (array[g.id]);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._name_problem(name text, may_be_empty boolean DEFAULT false)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN ((name = ''::text) AND (NOT may_be_empty)) THEN 'is empty; leave it out instead'::text WHEN (char_length(name) > 200) THEN format('has %s characters, 200 are allowed'::text, char_length(name)) ELSE NULL::text END;

CREATE OR REPLACE FUNCTION stepwell._operators_cancel(bigint[], text, text)
 RETURNS TABLE(id bigint, fence bigint, watched boolean, was_executing boolean, joins bigint, parent_round integer)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- End instances as cancelled. The fence grows, so that an outcome on its way is dropped. The inbox stays, closed.
-- Keeps: what it was doing (`operated`), for a retry; only rows that have not ended; side rows only of those.
--   Run after operators/lock.sql.
-- Index: the primary key (|| '': no other). Locks: the rows (ours already).
-- Returns: the cancelled rows: the fence, whether a client waits, whether it was executing, the parent whose join
--   it counts at.
with live as materialized (
  select i.id, i.joined as was_joined, i.status as was, i.deadline
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' not in ('done', 'failed', 'cancelled')
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      worker_id = null, claimed_at = null, hold = null, hold_reason = null, deadline = null,
      joined = i.joined or i.parent_id is not null
  from live l
  where i.id = l.id
  returning i.id, i.fence, i.watched, l.was, l.deadline, l.was = 'executing' as was_executing,
            case when i.joined and not l.was_joined then i.parent_id end as joins, i.parent_round
), stored as (
  update stepwell.instance_data d
  set error = $2::text::jsonb, operated = $3::text::jsonb
                                       || jsonb_build_object('at', stepwell.now(), 'was', c.was, 'deadline', c.deadline)
  from cancelled c
  where d.id = c.id
)
select id, fence, watched, was_executing, joins, parent_round
from cancelled;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_find_subtree(bigint, boolean)
 RETURNS TABLE(id bigint, concurrency_key text, parent_id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find what a cancel concerns: an instance and, if $2, all below it, as far as they have not ended.
-- Index: the primary key, instances_parent. Locks: none. Returns: id, concurrency key and parent of each.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t join stepwell.instances c on c.parent_id = t.id
  where $2::boolean
)
select i.id, i.concurrency_key, i.parent_id
from tree t join stepwell.instances i on i.id = t.id
where i.status not in ('done', 'failed', 'cancelled');
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_lock(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Lock instances, parents and children together, in id order. Index: the primary key.
-- Locks: the rows, no key update; waits for whoever holds them. Returns: the locked ids.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._refuse(code text, field text, problem text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  raise exception using errcode = code, message = field || ': ' || problem, column = field;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._shape_problem(given jsonb, fields jsonb, OUT field text, OUT problem text)
 RETURNS record
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
begin
  if jsonb_typeof(given) <> 'object' then
    field := '';
    problem := format('expected an object, got %s', jsonb_typeof(given));
    return;
  end if;
  select g.key,
         case when not fields ? g.key
              then format('is unknown (known: %s)',
                          (select string_agg(f, ', ' order by f) from jsonb_object_keys(fields) f))
              else format('expected %s, got %s', fields ->> g.key, jsonb_typeof(g.value))
         end
  into field, problem
  from jsonb_each(given) g
  where not fields ? g.key
     or (fields ->> g.key is not null and jsonb_typeof(g.value) not in (fields ->> g.key, 'null'))
  limit 1;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._signals_deliver(bigint[], text[], text[], text[], text[], text[])
 RETURNS TABLE("position" integer, target bigint, resolved bigint, queue text)
 LANGUAGE plpgsql
AS $function$
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
                         where i.tenant = g.tenant and i.guard = g.key)) as id
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
$function$;

CREATE OR REPLACE FUNCTION stepwell.cancel(id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, reason text DEFAULT NULL::text, cascade boolean DEFAULT true, by text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  was_cancelled constant boolean := stepwell.try_cancel(id, key, reason, cascade, by, tenant, notify);
begin
  if was_cancelled is null then
    perform stepwell._refuse('SW012', case when id is null then 'key' else 'id' end, format(
      'no instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return was_cancelled;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN now();

CREATE OR REPLACE FUNCTION stepwell.signal(name text, payload jsonb DEFAULT NULL::jsonb, id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, dedup_key text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  reached bigint;
begin
  select s.id into reached
  from stepwell.signal_many(jsonb_build_array(jsonb_build_object(
    'id', id, 'key', key, 'name', name, 'payload', payload, 'dedup_key', dedup_key, 'tenant', tenant)), notify) s;
  if reached is null then
    perform stepwell._refuse('SW011', case when id is null then 'key' else 'id' end, format(
      'nobody to signal: no live instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return reached;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.signal_many(signals jsonb, notify boolean DEFAULT true)
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
#variable_conflict use_column
declare
  fields constant jsonb := '{"id": "number", "key": "string", "name": "string", "payload": null, "dedup_key": "string",
    "tenant": "string", "checked": "boolean"}';
  largest constant bigint := (select max_payload from stepwell.meta);
  bad record;
  pending jsonb;
  delivered jsonb;
  queues text[] := '{}';
begin
  perform stepwell._check_isolation();
  if signals is null or jsonb_typeof(signals) <> 'array' then
    perform stepwell._refuse('SW001', 'signals', 'expected an array of objects');
  end if;

  select format('signals[%s]', g.place - 1) as place, s.field, s.problem
  into bad
  from jsonb_array_elements(signals) with ordinality as g(signal, place)
  cross join lateral stepwell._shape_problem(g.signal, fields) s
  where s.problem is not null
  order by g.place
  limit 1;
  if found then
    perform stepwell._refuse('SW001', coalesce(nullif(bad.field, ''), bad.place),
                             bad.problem || case when bad.field = '' then '' else format(' (in %s)', bad.place) end);
  end if;

  select r.code, r.field, r.problem || case when jsonb_array_length(signals) > 1
                                                then format(' (in signals[%s])', g.place - 1) else '' end as problem
  into bad
  from jsonb_array_elements(signals) with ordinality as g(signal, place)
  cross join lateral (values
    ('SW001', 'id', case
      when (g.signal ->> 'id' is null) = (g.signal ->> 'key' is null)
      then 'give either the id or the key of the instance to signal'
      when (g.signal ->> 'id')::numeric % 1 <> 0 then 'expected a whole number' end),
    ('SW001', 'key', stepwell._name_problem(g.signal ->> 'key')),
    ('SW001', 'name', case when g.signal ->> 'name' is null then 'is missing; name the signal'
                           else stepwell._name_problem(g.signal ->> 'name') end),
    ('SW001', 'dedup_key', stepwell._name_problem(g.signal ->> 'dedup_key')),
    ('SW001', 'tenant', stepwell._name_problem(g.signal ->> 'tenant', true)),
    ('SW004', 'payload', case
      when g.signal ->> 'checked' is distinct from 'true' and octet_length(g.signal ->> 'payload') > largest
      then format('%s bytes are more than max_payload (%s); send a reference instead',
                  octet_length(g.signal ->> 'payload'), largest) end)
  ) r(code, field, problem)
  where r.problem is not null
  order by g.place
  limit 1;
  if found then
    perform stepwell._refuse(bad.code, bad.field, bad.problem);
  end if;

  select coalesce(jsonb_agg(g.signal || jsonb_build_object('position', g.place - 1) order by g.place), '[]')
  into pending
  from jsonb_array_elements(signals) with ordinality as g(signal, place);
  for attempt in 1 .. 10 loop
    exit when jsonb_array_length(pending) = 0;
    select jsonb_agg(jsonb_build_object('signal', pending -> d.position, 'target', d.target, 'queue', d.queue,
                                        'resolved', d.resolved) order by d.position)
    into delivered
    from (select array_agg(case when e.id between 1 and 9223372036854775807 then e.id::bigint
                                when e.id is not null then 0 end),
                 array_agg(coalesce(e.tenant, '')), array_agg(e.key), array_agg(e.name),
                 array_agg(coalesce(e.payload, 'null')::text), array_agg(e.dedup_key)
          from (select * from jsonb_to_recordset(pending) as r(
                  "position" integer, id numeric, tenant text, key text, name text, payload jsonb, dedup_key text)
                order by r.position) e
         ) a(id, tenant, key, name, payload, dedup_key)
    cross join lateral stepwell._signals_deliver(a.id, a.tenant, a.key, a.name, a.payload, a.dedup_key) d;

    queues := queues || array(select d ->> 'queue' from jsonb_array_elements(delivered) d
                              where d ->> 'queue' is not null);
    -- A key's holder that ended while we waited for it may have a successor: those are tried once more.
    return query
      select (d -> 'signal' ->> 'position')::integer, (d ->> 'target')::bigint
      from jsonb_array_elements(delivered) d
      where d ->> 'target' is not null or d ->> 'resolved' is null or d -> 'signal' ->> 'key' is null or attempt = 10;
    select coalesce(jsonb_agg(d -> 'signal'), '[]')
    into pending
    from jsonb_array_elements(delivered) d
    where d ->> 'target' is null and d ->> 'resolved' is not null and d -> 'signal' ->> 'key' is not null;
  end loop;

  if notify then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(queues) as queue) q;
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.start(machine text, state jsonb DEFAULT '{}'::jsonb, key text DEFAULT NULL::text, key_scope text DEFAULT 'live'::text, if_exists text DEFAULT 'raise'::text, queue text DEFAULT NULL::text, priority integer DEFAULT 0, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, step text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, version integer DEFAULT NULL::integer, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  started record;
begin
  if if_exists is null or if_exists not in ('raise', 'return') then
    perform stepwell._refuse('SW001', 'if_exists', format('%L is neither ''raise'' nor ''return''', if_exists));
  elsif delay not between interval '0' and interval '36500 days' then
    perform stepwell._refuse('SW001', 'delay', format('%s is out of range (0 to 36500 days)', delay));
  elsif delay is not null and at is not null then
    perform stepwell._refuse('SW001', 'delay', 'both delay and at are given; give one of them');
  end if;
  select s.id, s.is_duplicate into started
  from stepwell.start_many(jsonb_build_array(jsonb_build_object(
    'machine', machine, 'state', state, 'key', key, 'key_scope', key_scope, 'queue', queue, 'priority', priority,
    'at', coalesce(at, stepwell.now() + delay), 'step', step, 'concurrency_key', concurrency_key, 'version', version,
    'tenant', tenant)), notify) s;
  if started.is_duplicate and if_exists = 'raise' then
    raise exception using errcode = 'SW010', column = 'key', detail = started.id::text,
      message = format('key: %L is occupied by instance %s', key, started.id),
      hint = 'Signal or wait for that one, or pass if_exists => ''return''.';
  end if;
  return started.id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.start_many(entries jsonb, notify boolean DEFAULT true)
 RETURNS TABLE("position" integer, id bigint, is_duplicate boolean)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
#variable_conflict use_column
declare
  pending jsonb;
  started jsonb;
  buried bigint[];
  occupied jsonb;
  queues text[] := '{}';
  has_later boolean := false;
begin
  perform stepwell._check_isolation();
  pending := stepwell._check_entries(entries);
  for attempt in 1 .. 10 loop
    exit when jsonb_array_length(pending) = 0;

    select coalesce(jsonb_agg(jsonb_build_object('entry', (pending -> s.position) - 'state', 'id', s.id,
                                                 'queue', s.queue, 'later', s.later)), '[]')
    into started
    from (select array_agg(e.machine), array_agg(e.version), array_agg(e.step), array_agg(e.queue),
                 array_agg(e.priority), array_agg(make_interval(secs => e.delay)), array_agg(e.at),
                 array_agg(e.tenant), array_agg(e.key), array_agg(e.key_scope), array_agg(e.concurrency_key),
                 array_agg(coalesce(e.state, 'null')::text), array_agg(null::bigint), array_agg(null::integer)
          from (select * from jsonb_to_recordset(pending) as r(
                  "position" integer, machine text, version integer, step text, queue text, priority smallint,
                  delay float8, at timestamptz, tenant text, key text, key_scope text, concurrency_key text,
                  state jsonb)
                order by r.position) e
         ) a(machine, version, step, queue, priority, delay, at, tenant, key, key_scope, concurrency_key, state,
             nobody, none)
    cross join lateral stepwell._instances_start(
      a.machine, a.version, a.step, a.queue, a.priority, a.delay, a.at, a.tenant, a.key, a.key_scope,
      a.concurrency_key, a.state, a.nobody, a.none, a.none) s;

    -- A key whose last holder was pruned while we waited for its deletion has a tombstone that we did not see.
    select coalesce(array_agg(b.id), '{}')
    into buried
    from stepwell._instances_find_buried(array(select (s ->> 'id')::bigint from jsonb_array_elements(started) s
                                               where s -> 'entry' ->> 'key' is not null)) b;
    if buried <> '{}' then
      perform stepwell._instances_unstart(buried);
      select coalesce(jsonb_agg(s), '[]') into started
      from jsonb_array_elements(started) s
      where (s ->> 'id')::bigint <> all (buried);
    end if;

    update stepwell.instance_data d
    set unchecked = true
    where d.id = any (array(select (s ->> 'id')::bigint from jsonb_array_elements(started) s
                            where (s -> 'entry' ->> 'unchecked')::boolean));
    return query
      select (s -> 'entry' ->> 'position')::integer, (s ->> 'id')::bigint, false
      from jsonb_array_elements(started) s;
    queues := queues || array(select s ->> 'queue' from jsonb_array_elements(started) s
                              where not (s ->> 'later')::boolean);
    has_later := has_later or exists (select from jsonb_array_elements(started) s where (s ->> 'later')::boolean);

    -- What is left is occupied, or was a moment ago; who has left since then is tried once more.
    select coalesce(jsonb_agg(p), '[]') into pending
    from jsonb_array_elements(pending) p
    where p ->> 'position' not in (select s -> 'entry' ->> 'position' from jsonb_array_elements(started) s);
    exit when jsonb_array_length(pending) = 0;
    select coalesce(jsonb_agg(jsonb_build_object('position', pending -> o.position -> 'position', 'id', o.id)), '[]')
    into occupied
    from stepwell._instances_find_occupants(array(select p ->> 'tenant' from jsonb_array_elements(pending) p),
                                            array(select p ->> 'key' from jsonb_array_elements(pending) p)) o;
    return query
      select (o ->> 'position')::integer, (o ->> 'id')::bigint, true
      from jsonb_array_elements(occupied) o;
    select coalesce(jsonb_agg(p), '[]') into pending
    from jsonb_array_elements(pending) p
    where p ->> 'position' not in (select o ->> 'position' from jsonb_array_elements(occupied) o);
  end loop;
  if jsonb_array_length(pending) > 0 then
    raise exception using errcode = 'serialization_failure',
      message = 'keys changed hands faster than they could be taken; try the transaction again';
  end if;

  if notify then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(queues) as queue) q;
    if has_later then
      perform pg_notify('stepwell_due', '');
    end if;
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.try_cancel(id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, reason text DEFAULT NULL::text, cascade boolean DEFAULT true, by text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
declare
  root bigint;
  ended record;
  ids bigint[];
  parents bigint[];
  holders bigint[];
  joined_parents bigint[];
  rounds integer[];
  queues text[] := '{}';
  is_cancelled boolean := false;
  frees_keys boolean := false;
  why constant text := coalesce(try_cancel.reason, 'cancelled');
  error constant text := jsonb_build_object('type', 'Cancelled', 'message', why, 'traceback', null);
  note constant text := jsonb_build_object('act', 'cancel', 'by', try_cancel.by, 'reason', why);
begin
  perform stepwell._check_isolation();
  if (try_cancel.id is null) = (try_cancel.key is null) then
    perform stepwell._refuse('SW001', 'id', 'give either the id or the key of the instance to cancel');
  elsif try_cancel.cascade is null then
    perform stepwell._refuse('SW001', 'cascade', 'expected true or false, got null');
  end if;
  root := coalesce(try_cancel.id, (select k.id
                               from stepwell._instances_find_key(coalesce(try_cancel.tenant, ''), try_cancel.key) k));
  select i.status in ('done', 'failed', 'cancelled') as already into ended
  from stepwell.instances i
  where i.id = root;
  if not found then
    return null;
  elsif ended.already then
    return false;
  end if;

  loop
    select array_agg(t.id), coalesce(array_agg(t.parent_id) filter (where t.parent_id is not null), '{}'),
           coalesce(array_agg(t.id) filter (where t.concurrency_key is not null), '{}')
    into ids, parents, holders
    from stepwell._operators_find_subtree(root, try_cancel.cascade) t;
    exit when ids is null;
    perform stepwell._operators_lock(ids || parents);
    joined_parents := '{}';
    rounds := '{}';
    for ended in select * from stepwell._operators_cancel(ids, error, note) loop
      is_cancelled := is_cancelled or ended.id = root;
      if ended.joins is not null then
        joined_parents := joined_parents || ended.joins;
        rounds := rounds || ended.parent_round;
      end if;
      frees_keys := frees_keys or (ended.was_executing and ended.id = any (holders));
      if notify and ended.was_executing then
        perform pg_notify('stepwell_revoked', ended.id || ' ' || ended.fence);
      end if;
      if notify and ended.watched then
        perform pg_notify('stepwell_settled', ended.id::text);
      end if;
    end loop;
    queues := queues || array(select j.queue from stepwell._children_join(joined_parents, rounds) j);
    exit when not try_cancel.cascade;
  end loop;

  if notify then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(queues) as queue) q;
    if frees_keys then
      perform pg_notify('stepwell_idle', '');
    end if;
  end if;
  return is_cancelled;
end
$function$;

create table stepwell.instance_data (
  id         bigint not null,
  state      jsonb not null,
  result     jsonb,
  error      jsonb,
  operated   jsonb,
  unchecked  boolean default false not null,
  constraint instance_data_pkey PRIMARY KEY (id)
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);

create table stepwell.instances (
  id                 bigint generated always as identity not null,
  fence              bigint default 0 not null,
  worker_id          bigint,
  parent_id          bigint,
  await_unit_id      bigint,
  due_at             timestamp with time zone not null,
  claimed_at         timestamp with time zone,
  deadline           timestamp with time zone,
  created_at         timestamp with time zone not null,
  updated_at         timestamp with time zone not null,
  finished_at        timestamp with time zone,
  version            integer not null,
  attempt            integer default 0 not null,
  crashes            integer default 0 not null,
  visit              integer default 0 not null,
  round              integer default 0 not null,
  parent_round       integer,
  child_index        integer,
  children_pending   integer default 0 not null,
  weight             integer default 1 not null,
  priority           smallint default 0 not null,
  joined             boolean default false not null,
  watched            boolean default false not null,
  has_inbox          boolean default false not null,
  tenant             text collate "C" default ''::text not null,
  machine            text collate "C" not null,
  step               text collate "C" not null,
  status             text collate "C" default 'runnable'::text not null,
  hold               text collate "C",
  hold_reason        text,
  queue              text collate "C" not null,
  concurrency_key    text collate "C",
  concurrency_limit  text collate "C",
  rate_limit         text collate "C",
  awaits             text[] collate "C",
  key                text collate "C",
  key_scope          text collate "C",
  guard              text collate "C" generated always as (
CASE
    WHEN (key_scope = 'forever'::text) THEN key
    WHEN ((key_scope = 'live'::text) AND (status <> ALL (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]))) THEN key
    ELSE NULL::text
END) stored,
  constraint instances_pkey PRIMARY KEY (id),
  constraint awaiting_signal_has_names CHECK (status <> 'awaiting_signal'::text OR awaits IS NOT NULL),
  constraint children_not_negative CHECK (children_pending >= 0),
  constraint executing_has_worker CHECK ((status = 'executing'::text) = (worker_id IS NOT NULL)),
  constraint finished_has_end CHECK ((status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint hold_known CHECK (hold = ANY (ARRAY['due'::text, 'key'::text, 'limit'::text, 'rate'::text, 'version'::text, 'unfit'::text, 'paused'::text])),
  constraint key_has_scope CHECK ((key IS NULL) = (key_scope IS NULL) AND (key_scope = ANY (ARRAY['live'::text, 'forever'::text]))),
  constraint only_runnable_is_held CHECK (hold IS NULL OR status = 'runnable'::text),
  constraint status_known CHECK (status = ANY (ARRAY['runnable'::text, 'executing'::text, 'awaiting_signal'::text, 'awaiting_children'::text, 'awaiting_external'::text, 'done'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX instances_behind_key ON stepwell.instances USING btree (concurrency_key, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'key'::text));
CREATE INDEX instances_claim ON stepwell.instances USING btree (queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL));
CREATE UNIQUE INDEX instances_concurrency_key ON stepwell.instances USING btree (concurrency_key)
  WHERE ((status = 'executing'::text) AND (concurrency_key IS NOT NULL));
CREATE INDEX instances_deadline ON stepwell.instances USING btree (deadline)
  WHERE (deadline IS NOT NULL);
CREATE INDEX instances_due ON stepwell.instances USING btree (due_at)
  WHERE ((status = 'runnable'::text) AND (hold = 'due'::text));
CREATE INDEX instances_executing ON stepwell.instances USING btree (worker_id)
  WHERE (status = 'executing'::text);
CREATE INDEX instances_finished ON stepwell.instances USING btree (machine, finished_at, id)
  WHERE (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]));
CREATE UNIQUE INDEX instances_guard ON stepwell.instances USING btree (tenant, guard)
  WHERE (guard IS NOT NULL);
CREATE INDEX instances_key ON stepwell.instances USING btree (tenant, key, id)
  WHERE (key IS NOT NULL);
CREATE INDEX instances_parent ON stepwell.instances USING btree (parent_id, parent_round, child_index)
  WHERE (parent_id IS NOT NULL);
CREATE INDEX instances_unrunnable ON stepwell.instances USING btree (hold, machine, version)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['version'::text, 'unfit'::text])));

create table stepwell.machines (
  name        text collate "C" not null,
  version     integer not null,
  initial     text not null,
  queue       text not null,
  steps       text[] not null,
  active      boolean not null,
  updated_at  timestamp with time zone default now() not null,
  retention   interval default '1 day'::interval,
  constraint machines_pkey PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX machines_active ON stepwell.machines USING btree (name)
  WHERE active;

create table stepwell.meta (
  singleton    boolean default true not null,
  version      integer not null,
  migrated_at  timestamp with time zone default now() not null,
  max_payload  bigint default 1048576 not null,
  constraint meta_pkey PRIMARY KEY (singleton),
  constraint meta_singleton_check CHECK (singleton)
);

create table stepwell.signals (
  id           bigint generated always as identity not null,
  instance_id  bigint not null,
  sent_at      timestamp with time zone not null,
  consumed     boolean default false not null,
  name         text collate "C" not null,
  dedup_key    text collate "C",
  payload      jsonb,
  constraint signals_pkey PRIMARY KEY (id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE UNIQUE INDEX signals_dedup ON stepwell.signals USING btree (instance_id, dedup_key)
  WHERE (dedup_key IS NOT NULL);
CREATE INDEX signals_inbox ON stepwell.signals USING btree (instance_id, id);

create table stepwell.tombstones (
  tenant       text collate "C" not null,
  key          text collate "C" not null,
  instance_id  bigint not null,
  buried_at    timestamp with time zone not null,
  constraint tombstones_pkey PRIMARY KEY (tenant, key)
);

create table stepwell.workers (
  id            bigint generated always as identity not null,
  host          text not null,
  boot          text not null,
  pid           integer not null,
  process       text not null,
  release       text not null,
  queues        jsonb not null,
  machines      text[] not null,
  started_at    timestamp with time zone default now() not null,
  beat_at       timestamp with time zone default now() not null,
  lease_until   timestamp with time zone not null,
  has_left      boolean default false not null,
  steady_since  timestamp with time zone default now() not null,
  begun_at      timestamp with time zone default '-infinity'::timestamp with time zone not null,
  waiting       bigint[] default '{}'::bigint[] not null,
  running       integer default 0 not null,
  constraint workers_pkey PRIMARY KEY (id)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200);

insert into stepwell.meta (version) values (4);
