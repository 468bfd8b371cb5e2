-- The doors in SQL: start, signal and cancel from any language, inside the caller's transaction.
-- Here stand the checks, the order of the statements and the notices; what happens to the rows is 0003_statements.
--
-- Refusals have SQLSTATEs of our own, a message "field: problem", and the field's name as the error's column:
--   SW001 invalid input   SW002 unknown machine   SW003 unknown step   SW004 payload too large
--   SW005 a transaction above READ COMMITTED      SW010 duplicate key  SW011 no target   SW012 not found
--
-- Each door is SECURITY DEFINER, so that a role may call it and do nothing else; hence the fixed search_path. The
-- planner's settings are a worker's (docs/decisions/0003): one good plan for each statement, at any size.

-- How large a payload these doors take; `migrate` writes the engine's max_payload.
alter table stepwell.meta add column max_payload bigint not null default 1048576;

-- A state that came in by SQL has met no type yet: if it does not decode, that is the caller's mistake and goes to
-- `handle`, while a stored state that no longer decodes waits for better code.
alter table stepwell.instance_data add column unchecked boolean not null default false;


create function stepwell._refuse(code text, field text, problem text)
returns void
language plpgsql as $$
begin
  raise exception using errcode = code, message = field || ': ' || problem, column = field;
end
$$;


-- The doors look twice, and the second look must see what others have committed meanwhile.
create function stepwell._check_isolation()
returns void
language plpgsql as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform stepwell._refuse('SW005', 'connection', format(
      'its transaction is %s; start, signal and cancel need READ COMMITTED: use another transaction for them',
      upper(current_setting('transaction_isolation'))));
  end if;
end
$$;


-- What is wrong with a name or a key; null if nothing is.
create function stepwell._name_problem(name text, may_be_empty boolean default false)
returns text
language sql stable parallel safe as $$
select case
  when name = '' and not may_be_empty then 'is empty; leave it out instead'
  when char_length(name) > 200 then format('has %s characters, 200 are allowed', char_length(name))
end
$$;


-- What is wrong with a long JSON value: what a worker could not read; null if nothing is. It is asked of all that is
-- stored, whoever says that it was checked: what can not be read puts the instance aside that it was sent to.
-- Only a text with so many digits in a row can hold a number that is too long. One with a fraction becomes a float.
create function stepwell._json_problem(value jsonb)
returns text
language sql stable as $$
select case
  when position(repeat('0', 1001) in translate(value::text, '123456789', '000000000')) > 0
    and jsonb_path_exists(value, '$.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))')
    then 'has a number of more than 1000 digits; send it as a string'
  when position(repeat('0', 309) in translate(value::text, '123456789', '000000000')) > 0
    and exists (select
                from jsonb_path_query(value, '$.** ? (@.type() == "number" && (@ >= 1.7976931348623158e308
                                              || @ <= -1.7976931348623158e308))') as n(number)
                where n.number::text like '%.%')
    then 'has a number with a fraction that is beyond every float; send it as a string'
  when jsonb_path_exists(value, '$.**{500}.type() ? (@ == "object" || @ == "array")')
    then 'is nested more than 500 deep'
end
$$;


-- A time with its zone, read from text; null if it is none.
create function stepwell._read_time(written text)
returns timestamptz
language plpgsql stable as $$
begin
  if written ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$') then
    return written::timestamptz;
  end if;
  return null;
exception when data_exception then
  return null;
end
$$;


-- Refuse what is no array of objects with these fields (name → type, null: any).
create function stepwell._check_shape(what text, given jsonb, fields jsonb)
returns void
language plpgsql as $$
declare
  bad record;
begin
  if given is null or jsonb_typeof(given) <> 'array' then
    perform stepwell._refuse('SW001', what, 'expected an array of objects');
  end if;
  select format('%s[%s]', what, e.place - 1) as entry, jsonb_typeof(e.entry) as type, f.key,
         jsonb_typeof(f.value) as got
  into bad
  from jsonb_array_elements(given) with ordinality as e(entry, place)
  cross join lateral jsonb_each(case jsonb_typeof(e.entry) when 'object' then e.entry else '{"": 0}' end) f
  where not fields ? f.key or jsonb_typeof(f.value) not in (fields ->> f.key, 'null')
  order by e.place, f.key
  limit 1;
  if not found then
    return;
  elsif bad.type <> 'object' then
    perform stepwell._refuse('SW001', bad.entry, format('expected an object, got %s', bad.type));
  elsif not fields ? bad.key then
    perform stepwell._refuse('SW001', bad.key, format(
      'is unknown (known: %s) (in %s)', (select string_agg(f, ', ' order by f) from jsonb_object_keys(fields) f),
      bad.entry));
  end if;
  perform stepwell._refuse('SW001', bad.key,
                           format('expected %s, got %s (in %s)', fields ->> bad.key, bad.got, bad.entry));
end
$$;


-- What is wrong with a start, as {SQLSTATE, field, problem}; null if nothing is. What is null was not given.
-- `known` and `steps` are its machine's, null if there is none. One expression, so that the planner can inline it.
create function stepwell._start_problem(
  machine text, version numeric, step text, key text, key_scope text, queue text, priority numeric, delay numeric,
  written_at text, at timestamptz, concurrency_key text, tenant text, state jsonb, is_checked boolean, known text,
  steps text[], largest bigint)
returns text[]
language sql stable as $$
select case
  when machine is null then array['SW001', 'machine', 'is missing; name the machine to start']
  when known is null then array['SW002', 'machine', format(
    '%L%s is not known to this database; run stepwell migrate --app …, or start a worker that has it',
    left(machine, 200), ' version ' || left(version::text, 20))]
  when step <> all (steps) then array['SW003', 'step', format(
    'machine %L has no step %L (it has: %s)', machine, left(step, 200), array_to_string(steps, ', '))]
  when stepwell._name_problem(key) is not null then array['SW001', 'key', stepwell._name_problem(key)]
  when key_scope not in ('live', 'forever') then array['SW001', 'key_scope', format(
    '%L is not allowed; it is ''live'', ''forever'' or null', left(key_scope, 200))]
  when stepwell._name_problem(queue) is not null then array['SW001', 'queue', stepwell._name_problem(queue)]
  when queue ~ '[[:cntrl:]]' then array['SW001', 'queue', 'has a character that does not print']
  when priority not between -32768 and 32767 or priority % 1 <> 0 then array['SW001', 'priority', format(
    '%s is no whole number from -32768 to 32767 (lower first)', left(priority::text, 20))]
  when delay is not null and written_at is not null then array['SW001', 'delay',
    'both delay and at are given; give one of them']
  when delay not between 0 and 36500 * 86400.0 then array['SW001', 'delay', format(
    '%s s is out of range (0 to 36500 days)', left(delay::text, 20))]
  when written_at is not null and (at >= '0001-01-01 00:00+00' and at < '9001-01-01 00:00+00') is not true
    then array['SW001', 'at', format(
    '%L is no time with a time zone up to the year 9000, like 2030-01-31T12:00:00Z', left(written_at, 50))]
  when stepwell._name_problem(concurrency_key) is not null
    then array['SW001', 'concurrency_key', stepwell._name_problem(concurrency_key)]
  when stepwell._name_problem(tenant, true) is not null
    then array['SW001', 'tenant', stepwell._name_problem(tenant, true)]
  when jsonb_typeof(state) not in ('object', 'null') then array['SW001', 'state', format(
    'expected an object, got %s', jsonb_typeof(state))]
  when octet_length(state::text) > 300 and stepwell._json_problem(state) is not null
    then array['SW001', 'state', stepwell._json_problem(state)]
  when is_checked then null
  when octet_length(state::text) > largest then array['SW004', 'state', format(
    '%s bytes are more than max_payload (%s); store a reference instead', octet_length(state::text), largest)]
end
$$;


-- Insert starts that were checked, tell who occupies the keys of the others, and notify the workers.
-- Each array has one place per start. Called by the doors only, which fix the planner's settings. Places are looked up
-- in a hash, not joined (is true): see instances/start.sql.
create function stepwell._start(
  machines text[], versions integer[], steps text[], queues text[], priorities smallint[], delays interval[],
  times timestamptz[], tenants text[], keys text[], key_scopes text[], concurrency_keys text[], states text[],
  unchecked boolean[], notify boolean)
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
                                   key_scopes, concurrency_keys, states, '{}', '{}', '{}', unchecked) s;
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
           array_agg(e.key_scope), array_agg(e.concurrency_key), array_agg(e.state), array_agg(e.unchecked)
    into positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
         concurrency_keys, states, unchecked
    from unnest(positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
                concurrency_keys, states, unchecked)
         with ordinality as e(position, machine, version, step, queue, priority, delay, at, tenant, key, key_scope,
                              concurrency_key, state, unchecked, place)
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
create function stepwell.start_many(entries jsonb, notify boolean default true)
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
    "at": "string", "concurrency_key": "string", "tenant": "string", "checked": "boolean"}');

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
         array_agg(not c.is_checked) as unchecked
  into given
  from (select e.*, m.name as known, m.version as known_version, m.initial, m.queue as known_queue, x.*,
               stepwell._start_problem(
                 e.machine, e.version, e.step, e.key, x.scope, e.queue, e.priority, e.delay, e.written_at, x.at,
                 e.concurrency_key, e.tenant, e.state, x.is_checked, m.name, m.steps,
                 (select max_payload from stepwell.meta)) as problem
        from rows from (
          jsonb_array_elements(entries),
          jsonb_to_recordset(entries) as (
            machine text, version numeric, step text, key text, queue text, priority numeric, delay numeric, at text,
            concurrency_key text, tenant text, state jsonb, checked boolean)
        ) with ordinality as e(entry, machine, version, step, key, queue, priority, delay, written_at, concurrency_key,
                               tenant, state, checked, place)
        left join stepwell.machines m
          on m.name = e.machine and case when e.version is null then m.active else m.version = e.version end
        cross join lateral (
          select case when e.written_at is not null then stepwell._read_time(e.written_at) end as at,
                 case when e.entry ? 'key_scope' then e.entry ->> 'key_scope' else 'live' end as scope,
                 coalesce(e.checked, false) as is_checked
          offset 0) x
        order by e.place) c;
  if given.problems is not null then
    perform stepwell._refuse(given.problems[1][1], given.problems[1][2], given.problems[1][3]
      || case when jsonb_array_length(entries) > 1 then format(' (in entries[%s])', given.problems[1][4]) else '' end);
  elsif given.machine is not null then
    return query select * from stepwell._start(
      given.machine, given.version, given.step, given.queue, given.priority, given.delay, given.at, given.tenant,
      given.key, given.key_scope, given.concurrency_key, given.state, given.unchecked, notify);
  end if;
end
$$;


-- Start one instance: select stepwell.start('Checkout', '{"order": 42}', key => 'order:42').
-- Returns its id. An occupied key is refused, or answered with its holder's id: if_exists => 'return'.
create function stepwell.start(
  machine text, state jsonb default '{}', key text default null, key_scope text default 'live',
  if_exists text default 'raise', queue text default null, priority integer default 0, delay interval default null,
  at timestamptz default null, step text default null, concurrency_key text default null, version integer default null,
  tenant text default '', notify boolean default true)
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
  select m.name, m.version, m.initial, m.queue, m.steps, l.max_payload
  into known
  from stepwell.meta l
  left join stepwell.machines m
    on m.name = start.machine and case when start.version is null then m.active else m.version = start.version end;
  problem := stepwell._start_problem(
    machine, version, step, key, key_scope, queue, priority, extract(epoch from delay), at::text, at, concurrency_key,
    tenant, state, false, known.name, known.steps, known.max_payload);
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
    array[true], notify) s;
  if started.is_duplicate and if_exists = 'raise' then
    raise exception using errcode = 'SW010', column = 'key', detail = started.id::text,
      message = format('key: %L is occupied by instance %s', key, started.id),
      hint = 'Signal or wait for that one, or pass if_exists => ''return''.';
  end if;
  return started.id;
end
$$;


-- What is wrong with a signal, as {SQLSTATE, field, problem}; null if nothing is. As _start_problem.
create function stepwell._signal_problem(
  id numeric, key text, name text, dedup_key text, tenant text, payload jsonb, is_checked boolean, largest bigint)
returns text[]
language sql stable as $$
select case
  when (id is null) = (key is null) then array['SW001', 'id', 'give either the id or the key of the instance to signal']
  when id % 1 <> 0 then array['SW001', 'id', 'expected a whole number']
  when stepwell._name_problem(key) is not null then array['SW001', 'key', stepwell._name_problem(key)]
  when name is null then array['SW001', 'name', 'is missing; name the signal']
  when stepwell._name_problem(name) is not null then array['SW001', 'name', stepwell._name_problem(name)]
  when stepwell._name_problem(dedup_key) is not null
    then array['SW001', 'dedup_key', stepwell._name_problem(dedup_key)]
  when stepwell._name_problem(tenant, true) is not null
    then array['SW001', 'tenant', stepwell._name_problem(tenant, true)]
  when octet_length(payload::text) > 300 and stepwell._json_problem(payload) is not null
    then array['SW001', 'payload', stepwell._json_problem(payload)]
  when is_checked then null
  when octet_length(payload::text) > largest then array['SW004', 'payload', format(
    '%s bytes are more than max_payload (%s); send a reference instead', octet_length(payload::text), largest)]
end
$$;


-- Deliver signals that were checked, and notify the workers. Each array has one place per signal.
create function stepwell._signal(
  ids bigint[], tenants text[], keys text[], names text[], payloads text[], dedup_keys text[], notify boolean)
returns table ("position" integer, id bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  positions integer[] := array(select generate_series(0, cardinality(names) - 1));
  orphans integer[];
  reached bigint[];
  ready text[];
  all_ready text[] := '{}';
begin
  for attempt in 1 .. 10 loop
    -- A key's holder that ended while we waited for it may have a successor: those are tried once more.
    select array_agg(d.target order by d.position), array_agg(distinct d.queue) filter (where d.queue is not null),
           coalesce(array_agg(d.position + 1) filter (where d.target is null and d.resolved is not null), '{}')
    into reached, ready, orphans
    from stepwell._signals_deliver(ids, tenants, keys, names, payloads, dedup_keys) d;
    all_ready := all_ready || ready;
    orphans := array(select e.place from unnest(keys) with ordinality as e(key, place)
                     where e.key is not null and (e.place in (select unnest(orphans))) is true and attempt < 10);
    return query
      select positions[r.place], r.target
      from unnest(reached) with ordinality as r(target, place)
      where r.place not in (select unnest(orphans));
    exit when orphans = '{}';
    select array_agg(e.position), array_agg(e.id), array_agg(e.tenant), array_agg(e.key), array_agg(e.name),
           array_agg(e.payload), array_agg(e.dedup_key)
    into positions, ids, tenants, keys, names, payloads, dedup_keys
    from unnest(positions, ids, tenants, keys, names, payloads, dedup_keys)
         with ordinality as e(position, id, tenant, key, name, payload, dedup_key, place)
    where (e.place in (select unnest(orphans))) is true;
  end loop;

  if notify is not false then
    perform pg_notify('stepwell_work', q.queue) from (select distinct unnest(all_ready) as queue) q;
  end if;
end
$$;


-- Signal many instances. Signals: [{id or key, name, payload, dedup_key, tenant}]; `checked`: see start_many.
-- Returns: one row per signal: its position from 0, and the id it reached (null: nobody was there).
create function stepwell.signal_many(signals jsonb, notify boolean default true)
returns table ("position" integer, id bigint)
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
  perform stepwell._check_shape('signals', signals, '{"id": "number", "key": "string", "name": "string",
    "payload": null, "dedup_key": "string", "tenant": "string", "checked": "boolean"}');

  select (array_agg(array[c.problem[1], c.problem[2], c.problem[3], (c.place - 1)::text] order by c.place)
          filter (where c.problem is not null)) as problems,
         array_agg(case when c.id between 1 and 9223372036854775807 then c.id::bigint
                        when c.id is not null then 0 end) as id,
         array_agg(coalesce(c.tenant, '')) as tenant, array_agg(c.key) as key, array_agg(c.name) as name,
         array_agg(coalesce(c.payload, 'null')::text) as payload, array_agg(c.dedup_key) as dedup_key
  into given
  from (select e.*, stepwell._signal_problem(
                 e.id, e.key, e.name, e.dedup_key, e.tenant, e.payload, e.is_checked,
                 (select max_payload from stepwell.meta)) as problem
        from (select r.*, coalesce(r.checked, false) as is_checked
              from rows from (jsonb_to_recordset(signals) as (
                id numeric, tenant text, key text, name text, payload jsonb, dedup_key text, checked boolean)
              ) with ordinality as r(id, tenant, key, name, payload, dedup_key, checked, place)
              offset 0) e
        order by e.place) c;
  if given.problems is not null then
    perform stepwell._refuse(given.problems[1][1], given.problems[1][2], given.problems[1][3]
      || case when jsonb_array_length(signals) > 1 then format(' (in signals[%s])', given.problems[1][4]) else '' end);
  elsif given.name is not null then
    return query select * from stepwell._signal(
      given.id, given.tenant, given.key, given.name, given.payload, given.dedup_key, notify);
  end if;
end
$$;


-- Signal one instance: select stepwell.signal('payment_confirmed', '{"amount": 100}', key => 'order:42').
-- Returns its id; nobody there is refused (SW011), and nothing is stored.
create function stepwell.signal(
  name text, payload jsonb default null, id bigint default null, key text default null, dedup_key text default null,
  tenant text default '', notify boolean default true)
returns bigint
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
  problem text[];
  reached bigint;
begin
  perform stepwell._check_isolation();
  problem := stepwell._signal_problem(id, key, name, dedup_key, tenant, payload, false,
                                      (select max_payload from stepwell.meta));
  if problem is not null then
    perform stepwell._refuse(problem[1], problem[2], problem[3]);
  end if;
  reached := (select s.id
              from stepwell._signal(array[signal.id], array[coalesce(signal.tenant, '')], array[signal.key],
                                    array[signal.name], array[coalesce(signal.payload, 'null')::text],
                                    array[signal.dedup_key], signal.notify) s);
  if reached is null then
    perform stepwell._refuse('SW011', case when id is null then 'key' else 'id' end, format(
      'nobody to signal: no live instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return reached;
end
$$;


-- Cancel an instance and what is below it. Returns false, and changes nothing, if it had ended; null if there is none.
-- Keys it held are freed by a worker after the caller's commit: freeing them here would let every flush of that key
-- wait for this transaction.
create function stepwell.try_cancel(
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
      frees_keys := frees_keys or (ended.was_executing and ended.id = any (holders));
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


-- Cancel an instance and what is below it: select stepwell.cancel(key => 'order:42', reason => 'no stock').
-- As try_cancel, but an instance that is not there is refused (SW012).
create function stepwell.cancel(
  id bigint default null, key text default null, reason text default null, cascade boolean default true,
  by text default null, tenant text default '', notify boolean default true)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  was_cancelled constant boolean := stepwell.try_cancel(id, key, reason, cascade, by, tenant, notify);
begin
  if was_cancelled is null then
    perform stepwell._refuse('SW012', case when id is null then 'key' else 'id' end, format(
      'no instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return was_cancelled;
end
$$;
