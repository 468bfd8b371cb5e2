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
language sql immutable parallel safe
return case
  when name = '' and not may_be_empty then 'is empty; leave it out instead'
  when char_length(name) > 200 then format('has %s characters, 200 are allowed', char_length(name))
end;


-- What is wrong with an object of the given fields (name → type, null: any): a field unknown, or of another type.
create function stepwell._shape_problem(given jsonb, fields jsonb, out field text, out problem text)
language plpgsql immutable as $$
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
$$;


-- Check the entries of a start and fill in what the machine says: version, step, queue.
-- Returns: [{position, machine, version, step, …, state, unchecked}], ready for the insert.
create function stepwell._check_entries(entries jsonb)
returns jsonb
language plpgsql as $$
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
$$;


-- Start many instances. Entries: [{machine, state, key, …}], as the arguments of `start`; delay in seconds.
-- Returns: one row per entry: its position from 0, the instance's id, and whether that is another instance that
--   occupies the key: a duplicate is an answer here, not an error.
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
as $$
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
$$;


-- Signal many instances. Signals: [{id or key, name, payload, dedup_key, tenant}].
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
$$;


-- Signal one instance: select stepwell.signal('payment_confirmed', '{"amount": 100}', key => 'order:42').
-- Returns its id; nobody there is refused (SW011), and nothing is stored.
create function stepwell.signal(
  name text, payload jsonb default null, id bigint default null, key text default null, dedup_key text default null,
  tenant text default '', notify boolean default true)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
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


revoke execute on all functions in schema stepwell from public;
grant execute on function stepwell.now() to public;
