-- Flow control: limits by name, buckets of tokens, the slot that an executing row is, and the lines behind both.

-- What is declared in code, and what an operator made of it. n: slots, or tokens per `per`; burst: the bucket's size.
create table stepwell.limits (
  kind        text collate "C" not null,
  name        text collate "C" not null,
  n           integer not null,
  per         interval,
  burst       integer,
  declared    jsonb not null,                          -- the same as the code has it; a change of it wins
  version     integer not null default 1,              -- grows with each change
  changed_at  timestamptz not null default pg_catalog.now(),
  changed_by  text,                                    -- an operator; null: the code
  primary key (kind, name),
  constraint kind_known check (kind in ('concurrency', 'rate')),
  constraint rate_has_bucket check ((kind = 'rate') = (per is not null and burst is not null)),
  constraint numbers_make_sense check (n >= 0 and (kind = 'concurrency' or n > 0 and burst > 0)
                                       and per > interval '0')
);

-- One row per rate limit, or part of one, that is in use; one that is not there is full.
create table stepwell.buckets (
  key          text collate "C" primary key,           -- name or name:part
  tokens       float8 not null,                        -- as of refilled_at
  refilled_at  timestamptz not null,
  next_at      timestamptz,                            -- when the head of the line may go; null: nobody waits
  constraint tokens_not_negative check (tokens >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create index buckets_next on stepwell.buckets (next_at) where next_at is not null;

-- What each step declares, for the SQL doors: {step: [concurrency limit, rate limit, weight]}.
alter table stepwell.machines add column limits jsonb not null default '{}';

alter table stepwell.instances
  add column slot integer,                             -- of its concurrency limit, while it executes
  add column own_limit text collate "C",               -- the instance's own concurrency limit, which a step may replace
  add constraint only_executing_has_slot check (slot is null or status = 'executing');

-- At most one executing instance per slot: an executing row is its slot, and there is no counter to go wrong.
create unique index instances_slot on stepwell.instances (concurrency_limit, slot)
  where status = 'executing' and slot is not null;
-- The line behind a concurrency limit, and the one behind a rate limit; by queue, since some may be paused or unserved.
create index instances_in_limit_line on stepwell.instances (concurrency_limit, queue, priority, due_at, id)
  where status = 'runnable' and hold = 'limit' and hold_reason is null;
create index instances_in_rate_line on stepwell.instances (rate_limit, queue, priority, due_at, id)
  where status = 'runnable' and hold = 'rate' and hold_reason is null;
-- What waits for a limit that does not exist, or is too small for it: it stands in nobody's way.
create index instances_unlimited on stepwell.instances (hold, id)
  where status = 'runnable' and hold in ('limit', 'rate') and hold_reason is not null;


-- The engine's own statements that have changed, for the SQL doors: see 0003_statements.
drop function stepwell._instances_start(text[], integer[], text[], text[], smallint[], interval[], timestamptz[], text[], text[], text[], text[], text[], bigint[], integer[], integer[], boolean[]);
drop function stepwell._operators_cancel(bigint[], text, text);

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
--   $17: what each needs of limits, as in commit.sql; null for nearly every one.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key.
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
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, stepwell.now(), stepwell.now(),
         e.needs::jsonb ->> 0, e.needs::jsonb ->> 1, e.needs::jsonb ->> 2, coalesce((e.needs::jsonb ->> 3)::integer, 1)
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant collate "C", e.key collate "C", e.position
  on conflict (tenant, guard) where guard is not null do nothing
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


create or replace function stepwell._operators_cancel(bigint[], text, text)
returns table ("id" bigint, "fence" bigint, "watched" boolean, "was_executing" boolean, "joins" bigint, "parent_round" integer, "concurrency_limit" text)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- End instances as cancelled. The fence grows, so that an outcome on its way is dropped. The inbox stays, closed.
-- Keeps: what it was doing (`operated`), for a retry; only rows that have not ended; side rows only of those.
--   Run after operators/lock.sql.
-- Index: the primary key (|| '': no other). Locks: the rows (ours already).
-- Returns: the cancelled rows: the fence, whether a client waits, whether it was executing, the parent whose join
--   it counts at, and the limit of which it held a slot, or waited for one.
with live as materialized (
  select i.id, i.joined as was_joined, i.status as was, i.deadline
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' not in ('done', 'failed', 'cancelled')
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      worker_id = null, claimed_at = null, slot = null, hold = null, hold_reason = null, deadline = null,
      joined = i.joined or i.parent_id is not null
  from live l
  where i.id = l.id
  returning i.id, i.fence, i.watched, l.was, l.deadline, l.was = 'executing' as was_executing,
            case when i.joined and not l.was_joined then i.parent_id end as joins, i.parent_round,
            i.concurrency_limit
), stored as (
  update stepwell.instance_data d
  set error = $2::text::jsonb, operated = $3::text::jsonb
                                       || jsonb_build_object('at', stepwell.now(), 'was', c.was, 'deadline', c.deadline)
  from cancelled c
  where d.id = c.id
)
select id, fence, watched, was_executing, joins, parent_round, concurrency_limit
from cancelled;
end
$$;
revoke execute on function stepwell._operators_cancel from public;


-- The doors once more, with what a start needs of limits: see 0004_doors. A limit is "name" or "name:part".
drop function stepwell.start(text, jsonb, text, text, text, text, integer, interval, timestamptz, text, text, integer,
                             text, boolean);
drop function stepwell._start(text[], integer[], text[], text[], smallint[], interval[], timestamptz[], text[], text[],
                              text[], text[], text[], boolean[], boolean);


-- What is wrong with a limit's name, in words; null if nothing is.
create function stepwell._limit_name_problem(kind text, given text)
returns text
language plpgsql stable as $$
begin
  return case
    when not exists (select from stepwell.limits l
                     where l.kind = _limit_name_problem.kind and l.name = split_part(given, ':', 1))
      then format('this database knows no %s limit %L; declare it in Engine(limits=[…]) and run stepwell migrate',
                  kind, left(split_part(given, ':', 1), 200))
    when given like '%:' then 'has an empty part behind its '':'''
    when char_length(given) - strpos(given, ':') > 200 and strpos(given, ':') > 0
      then 'has a part of more than 200 characters'
  end;
end
$$;


-- What is wrong with what a start needs of limits, as {SQLSTATE, field, problem}; null if nothing is. `declared` is
-- its step's: [concurrency limit, rate limit, weight].
create function stepwell._limit_problem(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
returns text[]
language plpgsql stable as $$
declare
  counted constant text := split_part(coalesce(rate_limit, declared ->> 1), ':', 1);
  problem text;
begin
  if concurrency_limit is not null then
    problem := stepwell._limit_name_problem('concurrency', concurrency_limit);
    if problem is not null then
      return array['SW001', 'concurrency_limit', problem];
    end if;
  end if;
  if rate_limit is not null then
    problem := stepwell._limit_name_problem('rate', rate_limit);
    if problem is not null then
      return array['SW001', 'rate_limit', problem];
    end if;
  end if;
  return case
    when weight is null then null
    when weight not between 1 and 1000000000 or weight % 1 <> 0 then array['SW001', 'weight', format(
      '%s is no whole number from 1 to 1000000000', left(weight::text, 20))]
    when counted is null then array['SW001', 'weight', 'counts against a rate_limit, and there is none']
    when weight > (select l.burst from stepwell.limits l where l.kind = 'rate' and l.name = counted)
      then array['SW001', 'weight', format('%s is above the burst of rate limit %L: it could never run', weight,
                                           counted)]
  end;
end
$$;


-- What a start needs of limits, as instances/start.sql takes it; null if nothing.
create function stepwell._needs(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
returns text
language sql stable as $$
select case
  when coalesce(concurrency_limit, rate_limit, declared ->> 0, declared ->> 1) is not null
    then jsonb_build_array(coalesce(declared ->> 0, concurrency_limit), concurrency_limit,
                           coalesce(rate_limit, declared ->> 1),
                           coalesce(weight::integer, case when rate_limit is null then (declared ->> 2)::integer end, 1)
                          )::text
end
$$;


-- Insert starts that were checked, tell who occupies the keys of the others, and notify the workers.
-- Each array has one place per start. Called by the doors only, which fix the planner's settings. Places are looked up
-- in a hash, not joined (is true): see instances/start.sql.
create function stepwell._start(
  machines text[], versions integer[], steps text[], queues text[], priorities smallint[], delays interval[],
  times timestamptz[], tenants text[], keys text[], key_scopes text[], concurrency_keys text[], states text[],
  unchecked boolean[], needs text[], notify boolean)
returns table ("position" integer, id bigint, is_duplicate boolean)
language plpgsql as $$
#variable_conflict use_column
declare
  positions integer[] := array(select generate_series(0, cardinality(machines) - 1));
  ids bigint[];
  places integer[];
  buried bigint[];
  occupied integer[];
  ready text[];
  is_later boolean;
  all_ready text[] := '{}';
  has_later boolean := false;
begin
  for attempt in 1 .. 10 loop
    select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.position + 1), '{}'),
           array_agg(distinct s.queue) filter (where not s.later), coalesce(bool_or(s.later), false)
    into ids, places, ready, is_later
    from stepwell._instances_start(machines, versions, steps, queues, priorities, delays, times, tenants, keys,
                                   key_scopes, concurrency_keys, states, '{}', '{}', '{}', unchecked, needs) s;
    all_ready := all_ready || ready;
    has_later := has_later or is_later;

    -- A key whose last holder was pruned while we waited for its deletion has a tombstone that we did not see.
    if array_remove(keys, null) <> '{}' then
      buried := array(select b.id from stepwell._instances_find_buried(ids) b);
      if buried <> '{}' then
        perform stepwell._instances_unstart(buried);
        select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.place), '{}')
        into ids, places
        from unnest(ids, places) as s(id, place)
        where s.id not in (select unnest(buried));
      end if;
    end if;
    return query select positions[s.place], s.id, false from unnest(ids, places) as s(id, place);
    exit when cardinality(places) = cardinality(positions);

    -- What is left is occupied, or was a moment ago; who has left since then is tried once more.
    places := array(select e.place from generate_series(1, cardinality(positions)) as e(place)
                    where e.place not in (select unnest(places)) order by e.place);
    select coalesce(array_agg(places[o.position + 1]), '{}'), coalesce(array_agg(o.id), '{}')
    into occupied, ids
    from stepwell._instances_find_occupants(
      array(select e.tenant from unnest(tenants) with ordinality as e(tenant, place)
            where (e.place in (select unnest(places))) is true order by e.place),
      array(select e.key from unnest(keys) with ordinality as e(key, place)
            where (e.place in (select unnest(places))) is true order by e.place)) o;
    return query select positions[o.place], o.id, true from unnest(ids, occupied) as o(id, place);
    exit when cardinality(occupied) = cardinality(places);
    if attempt = 10 then
      raise exception using errcode = 'serialization_failure',
        message = 'keys changed hands faster than they could be taken; try the transaction again';
    end if;
    select array_agg(e.position), array_agg(e.machine), array_agg(e.version), array_agg(e.step), array_agg(e.queue),
           array_agg(e.priority), array_agg(e.delay), array_agg(e.at), array_agg(e.tenant), array_agg(e.key),
           array_agg(e.key_scope), array_agg(e.concurrency_key), array_agg(e.state), array_agg(e.unchecked),
           array_agg(e.needs)
    into positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
         concurrency_keys, states, unchecked, needs
    from unnest(positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
                concurrency_keys, states, unchecked, needs)
         with ordinality as e(position, machine, version, step, queue, priority, delay, at, tenant, key, key_scope,
                              concurrency_key, state, unchecked, needs, place)
    where (e.place in (select unnest(places))) is true and e.place not in (select unnest(occupied));
  end loop;

  if notify is not false then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(all_ready) as queue) q;
    if has_later then
      perform pg_notify('stepwell_due', '');
    end if;
  end if;
end
$$;


-- Start many instances. Entries: [{machine, state, key, …}], as the arguments of `start`; delay in seconds.
-- Returns: one row per entry: its position from 0, the instance's id, and whether that is another instance that
--   occupies the key: a duplicate is an answer here, not an error. The order of the rows is not that of the entries.
-- `checked` is what Python says of entries whose state it has checked itself.
create or replace function stepwell.start_many(entries jsonb, notify boolean default true)
returns table ("position" integer, id bigint, is_duplicate boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  given record;
begin
  perform stepwell._check_isolation();
  perform stepwell._check_shape('entries', entries, '{"machine": "string", "version": "number", "step": "string",
    "state": null, "key": "string", "key_scope": "string", "queue": "string", "priority": "number", "delay": "number",
    "at": "string", "concurrency_key": "string", "concurrency_limit": "string", "rate_limit": "string",
    "weight": "number", "tenant": "string", "checked": "boolean"}');

  select (array_agg(array[c.problem[1], c.problem[2], c.problem[3], (c.place - 1)::text] order by c.place)
          filter (where c.problem is not null)) as problems,
         array_agg(c.known) as machine, array_agg(c.known_version) as version,
         array_agg(coalesce(c.step, c.initial)) as step,
         array_agg(coalesce(c.queue, c.known_queue)) as queue,
         array_agg(coalesce(c.priority, 0)::smallint) filter (where c.problem is null) as priority,
         array_agg(make_interval(secs => c.delay::float8)) filter (where c.problem is null) as delay,
         array_agg(c.at) as at, array_agg(coalesce(c.tenant, '')) as tenant,
         array_agg(case when c.scope is not null then c.key end) as key,
         array_agg(case when c.key is not null then c.scope end) as key_scope,
         array_agg(c.concurrency_key) as concurrency_key,
         array_agg(case when c.state is null or c.state = 'null' then '{}' else c.state::text end) as state,
         array_agg(not c.is_checked) as unchecked,
         array_agg(stepwell._needs(c.declared, c.concurrency_limit, c.rate_limit, c.weight))
           filter (where c.problem is null) as needs
  into given
  from (select e.*, m.name as known, m.version as known_version, m.initial, m.queue as known_queue, x.*,
               coalesce(stepwell._start_problem(
                 e.machine, e.version, e.step, e.key, x.scope, e.queue, e.priority, e.delay, e.written_at, x.at,
                 e.concurrency_key, e.tenant, e.state, x.is_checked, m.name, m.steps,
                 (select max_payload from stepwell.meta)),
                 case when coalesce(e.concurrency_limit, e.rate_limit, e.weight::text) is not null then
                   stepwell._limit_problem(x.declared, e.concurrency_limit, e.rate_limit, e.weight) end) as problem
        from rows from (
          jsonb_array_elements(entries),
          jsonb_to_recordset(entries) as (
            machine text, version numeric, step text, key text, queue text, priority numeric, delay numeric, at text,
            concurrency_key text, concurrency_limit text, rate_limit text, weight numeric, tenant text, state jsonb,
            checked boolean)
        ) with ordinality as e(entry, machine, version, step, key, queue, priority, delay, written_at, concurrency_key,
                               concurrency_limit, rate_limit, weight, tenant, state, checked, place)
        left join stepwell.machines m
          on m.name = e.machine and case when e.version is null then m.active else m.version = e.version end
        cross join lateral (
          select case when e.written_at is not null then stepwell._read_time(e.written_at) end as at,
                 case when e.entry ? 'key_scope' then e.entry ->> 'key_scope' else 'live' end as scope,
                 coalesce(e.checked, false) as is_checked, m.limits -> coalesce(e.step, m.initial) as declared
          offset 0) x
        order by e.place) c;
  if given.problems is not null then
    perform stepwell._refuse(given.problems[1][1], given.problems[1][2], given.problems[1][3]
      || case when jsonb_array_length(entries) > 1 then format(' (in entries[%s])', given.problems[1][4]) else '' end);
  elsif given.machine is not null then
    return query select * from stepwell._start(
      given.machine, given.version, given.step, given.queue, given.priority, given.delay, given.at, given.tenant,
      given.key, given.key_scope, given.concurrency_key, given.state, given.unchecked, given.needs,
      notify);
  end if;
end
$$;


-- Start one instance: select stepwell.start('Checkout', '{"order": 42}', key => 'order:42').
-- Returns its id. An occupied key is refused, or answered with its holder's id: if_exists => 'return'.
create function stepwell.start(
  machine text, state jsonb default '{}', key text default null, key_scope text default 'live',
  if_exists text default 'raise', queue text default null, priority integer default 0, delay interval default null,
  at timestamptz default null, step text default null, concurrency_key text default null, version integer default null,
  tenant text default '', notify boolean default true, concurrency_limit text default null,
  rate_limit text default null, weight integer default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'  -- so that a day has 24 hours
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  known record;
  problem text[];
  started record;
begin
  perform stepwell._check_isolation();
  if if_exists is null or if_exists not in ('raise', 'return') then
    perform stepwell._refuse('SW001', 'if_exists',
                             format('%L is neither ''raise'' nor ''return''', left(if_exists, 200)));
  end if;
  select m.name, m.version, m.initial, m.queue, m.steps, l.max_payload,
         m.limits -> coalesce(start.step, m.initial) as declared
  into known
  from stepwell.meta l
  left join stepwell.machines m
    on m.name = start.machine and case when start.version is null then m.active else m.version = start.version end;
  problem := coalesce(stepwell._start_problem(
    machine, version, step, key, key_scope, queue, priority, extract(epoch from delay), at::text, at, concurrency_key,
    tenant, state, false, known.name, known.steps, known.max_payload),
    stepwell._limit_problem(known.declared, concurrency_limit, rate_limit, weight));
  if problem is not null then
    perform stepwell._refuse(problem[1], problem[2], problem[3]);
  end if;
  select s.id, s.is_duplicate
  into started
  from stepwell._start(
    array[known.name], array[known.version], array[coalesce(step, known.initial)], array[coalesce(queue, known.queue)],
    array[coalesce(priority, 0)::smallint], array[delay], array[at], array[coalesce(tenant, '')],
    array[case when key_scope is not null then key end], array[case when key is not null then key_scope end],
    array[concurrency_key], array[case when state is null or state = 'null' then '{}' else state::text end],
    array[true], array[stepwell._needs(known.declared, concurrency_limit, rate_limit, weight)], notify) s;
  if started.is_duplicate and if_exists = 'raise' then
    raise exception using errcode = 'SW010', column = 'key', detail = started.id::text,
      message = format('key: %L is occupied by instance %s', key, started.id),
      hint = 'Signal or wait for that one, or pass if_exists => ''return''.';
  end if;
  return started.id;
end
$$;


-- Cancel an instance and what is below it. Returns false, and changes nothing, if it had ended; null if there is none.
-- Keys and slots that it held are freed by a worker after the caller's commit: freeing them here would let every flush
-- of that key wait for this transaction.
create or replace function stepwell.try_cancel(
  id bigint default null, key text default null, reason text default null, cascade boolean default true,
  by text default null, tenant text default '', notify boolean default true)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
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
  why constant text := coalesce(nullif(try_cancel.reason, ''), 'cancelled');
  tells constant boolean := try_cancel.notify is not false;
  error constant text := jsonb_build_object('type', 'Cancelled', 'message', why, 'traceback', null);
  note constant text := jsonb_build_object('act', 'cancel', 'by', try_cancel.by, 'reason', why);
begin
  perform stepwell._check_isolation();
  if (try_cancel.id is null) = (try_cancel.key is null) then
    perform stepwell._refuse('SW001', 'id', 'give either the id or the key of the instance to cancel');
  elsif try_cancel.cascade is null then
    perform stepwell._refuse('SW001', 'cascade', 'expected true or false, got null');
  elsif stepwell._name_problem(try_cancel.key) is not null then
    perform stepwell._refuse('SW001', 'key', stepwell._name_problem(try_cancel.key));
  elsif stepwell._name_problem(try_cancel.tenant, true) is not null then
    perform stepwell._refuse('SW001', 'tenant', stepwell._name_problem(try_cancel.tenant, true));
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
      frees_keys := frees_keys or (ended.was_executing and ended.id = any (holders))
                    or ended.concurrency_limit is not null;
      if tells and ended.was_executing then
        perform pg_notify('stepwell_revoked', ended.id || ' ' || ended.fence);
      end if;
      if tells and ended.watched then
        perform pg_notify('stepwell_settled', ended.id::text);
      end if;
    end loop;
    queues := queues || array(select j.queue from stepwell._children_join(joined_parents, rounds) j);
    exit when not try_cancel.cascade;
  end loop;

  if tells then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(queues) as queue) q;
    if frees_keys then
      perform pg_notify('stepwell_idle', '');
    end if;
  end if;
  return is_cancelled;
end
$$;
