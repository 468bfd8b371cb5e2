-- Questions to the world (docs/decisions/0014): what was asked, what must be answered, and where to go on.

-- Types of replies, as Python finds them again and as SQL checks them; a few rows, written once each.
create table stepwell.reply_types (
  id         text collate "C" not null constraint reply_types_pkey primary key,  -- a hash of what follows
  name       text not null,      -- as people call it
  reference  jsonb not null,     -- where Python finds it
  schema     jsonb               -- JSON Schema; null: anything
);

-- One boundary of one instance at one visit: how many questions, how many resolved. It decides whether all is answered.
create table stepwell.await_units (
  id              bigint generated always as identity constraint await_units_pkey primary key,
  instance_id     bigint not null,
  created_at      timestamptz not null,
  finished_at     timestamptz,
  timeout         interval,
  visit           integer not null,
  version         integer not null,
  "window"        integer,                      -- how many may be out at a time; null: it is one question
  opened          integer not null default 0,
  resolved        integer not null default 0,
  in_flight       integer not null default 0,   -- out and not resolved
  is_filled       boolean not null default false,
  is_sent         boolean not null,             -- by a dispatcher; else somebody looks for it
  requires_token  boolean not null,
  tenant          text collate "C" not null,
  machine         text collate "C" not null,
  step            text collate "C" not null,
  transport       text collate "C" not null,
  reply_type      text collate "C" not null,
  on_timeout      text collate "C" not null,
  status          text collate "C" not null default 'waiting',
  constraint status_known check (status in ('waiting', 'completed', 'timed_out', 'failed', 'cancelled')),
  constraint on_timeout_known check (on_timeout in ('wake', 'fail')),
  constraint only_ended_has_end check ((status = 'waiting') = (finished_at is null)),
  constraint no_more_than_opened check (in_flight >= 0 and resolved >= 0 and in_flight + resolved <= opened),
  constraint no_more_than_window check (in_flight <= "window")
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
create unique index await_units_visit on stepwell.await_units (instance_id, visit);
create index await_units_open on stepwell.await_units (instance_id) where status = 'waiting';

-- One question.
create table stepwell.interactions (
  id               uuid not null constraint interactions_pkey primary key,
  correlation      uuid not null,
  unit_id          bigint not null,
  instance_id      bigint not null,
  worker_id        bigint,                     -- that sends it
  created_at       timestamptz not null,
  deadline         timestamptz,
  next_at          timestamptz not null,       -- when it is to be sent, the next time
  dispatched_at    timestamptz,
  finished_at      timestamptz,
  item             integer not null default 0,
  attempts         integer not null default 0,
  tenant           text collate "C" not null,
  transport        text collate "C" not null,
  status           text collate "C" not null,
  assignee         text collate "C",
  group_name       text collate "C",
  actor            text,
  idempotency_key  text not null,
  error            text,
  seal             bytea,                      -- SHA-256 of the token that was handed out last
  request          jsonb not null,
  reply            jsonb,
  metadata         jsonb,
  constraint status_known check (status in ('queued', 'waiting', 'dispatching', 'dispatched', 'completed', 'timed_out',
                                            'failed', 'cancelled')),
  constraint only_ended_has_end check ((status in ('completed', 'timed_out', 'failed', 'cancelled'))
                                       = (finished_at is not null)),
  constraint only_completed_has_reply check ((status = 'completed') = (reply is not null)),
  constraint dispatching_has_worker check (status <> 'dispatching' or worker_id is not null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
create unique index interactions_item on stepwell.interactions (unit_id, item);
create unique index interactions_correlation on stepwell.interactions (tenant, correlation);
create index interactions_queued on stepwell.interactions (unit_id, item) where status = 'queued';
create index interactions_dispatch on stepwell.interactions (transport, next_at, unit_id, item)
  where status = 'waiting';
create index interactions_dispatching on stepwell.interactions (worker_id) where status = 'dispatching';
create index interactions_deadline on stepwell.interactions (deadline, id)
  where status in ('waiting', 'dispatching', 'dispatched') and deadline is not null;
create index interactions_pending on stepwell.interactions
  (tenant, (coalesce(deadline, 'infinity'::timestamptz)), created_at, id)
  where status in ('waiting', 'dispatching', 'dispatched');
create index interactions_assignee on stepwell.interactions
  (tenant, assignee, (coalesce(deadline, 'infinity'::timestamptz)), created_at, id)
  where status in ('waiting', 'dispatching', 'dispatched') and assignee is not null;
create index interactions_group on stepwell.interactions
  (tenant, group_name, (coalesce(deadline, 'infinity'::timestamptz)), created_at, id)
  where status in ('waiting', 'dispatching', 'dispatched') and group_name is not null;

-- The unit that an executing step fills, chunk by chunk; it becomes await_unit_id when the instance parks.
alter table stepwell.instances add column filling_unit_id bigint;
-- For the reconciler, which walks through what is parked.
create index instances_external on stepwell.instances (id) where status = 'awaiting_external';

-- The address of a question: the same for the same question, and unique within a tenant.
create function stepwell._correlation(tenant text, instance bigint, visit integer, item integer, key text) returns uuid
language sql immutable parallel safe as $$
select encode(substr(sha256(convert_to(concat_ws(E'\x1f', tenant, instance, visit, item, key), 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- What is wrong with a value by a JSON Schema, as msgspec and pydantic write them; null if nothing is. Words of a schema
-- that it does not know are passed over: Python checks the type itself when the step goes on. 1.0 is no integer: Python
-- would not read it as one.
create function stepwell._schema_problem(root jsonb, schema jsonb, value jsonb, path text) returns text
language plpgsql stable as $$
declare
  kind constant text := jsonb_typeof(value);
  allowed jsonb;
  part record;
  problem text;
begin
  if schema is null or kind is null or schema = 'true' then
    return null;
  elsif schema = 'false' then
    return path || ': is not allowed';
  elsif schema ? '$ref' then
    return stepwell._schema_problem(root, root #> string_to_array(ltrim(schema ->> '$ref', '#/'), '/'), value, path);
  end if;

  allowed := coalesce(schema -> 'anyOf', schema -> 'oneOf');
  if allowed is not null then
    for part in select a.value as one from jsonb_array_elements(allowed) a loop
      problem := stepwell._schema_problem(root, part.one, value, path);
      exit when problem is null;
    end loop;
    if problem is not null then
      return case when jsonb_array_length(allowed) > 2 then path || ': is none of what is allowed' else problem end;
    end if;
  end if;
  for part in select a.value as one from jsonb_array_elements(schema -> 'allOf') a loop
    problem := stepwell._schema_problem(root, part.one, value, path);
    if problem is not null then
      return problem;
    end if;
  end loop;

  if schema ? 'const' and (schema -> 'const')::text <> value::text then
    return format('%s: expected %s', path, schema -> 'const');
  elsif schema ? 'enum' and not exists (select from jsonb_array_elements(schema -> 'enum') e
                                        where e.value::text = _schema_problem.value::text) then
    return format('%s: expected one of %s', path, left(schema ->> 'enum', 200));
  end if;
  if schema ? 'type' then
    allowed := case jsonb_typeof(schema -> 'type') when 'array' then schema -> 'type'
                                                   else jsonb_build_array(schema -> 'type') end;
    if not (allowed ? kind or allowed ? 'integer' and kind = 'number' and scale((value #>> '{}')::numeric) = 0
            or schema @> '{"format": "decimal"}' and kind = 'number') then
      return format('%s: expected %s, got %s', path,
                    (select string_agg(a, ' or ') from jsonb_array_elements_text(allowed) a), kind);
    end if;
  end if;

  case kind
    when 'object' then return stepwell._object_problem(root, schema, value, path);
    when 'array' then return stepwell._array_problem(root, schema, value, path);
    when 'string' then return stepwell._string_problem(schema, value #>> '{}', path);
    when 'number' then return stepwell._number_problem(schema, (value #>> '{}')::numeric, path);
    else return null;
  end case;
end
$$;

create function stepwell._object_problem(root jsonb, schema jsonb, value jsonb, path text) returns text
language plpgsql stable as $$
declare
  part record;
  problem text;
begin
  for part in select r.name from jsonb_array_elements_text(schema -> 'required') r(name) loop
    if not value ? part.name then
      return format('%s: required field %L is missing', path, part.name);
    end if;
  end loop;
  for part in select e.key, e.value from jsonb_each(value) e loop
    if schema -> 'properties' ? part.key then
      problem := stepwell._schema_problem(root, schema -> 'properties' -> part.key, part.value, path || '.' || part.key);
    elsif schema -> 'additionalProperties' = 'false' then
      problem := format('%s: field %L is unknown', path, left(part.key, 100));
    else
      problem := stepwell._schema_problem(root, schema -> 'additionalProperties', part.value, path || '.' || part.key);
    end if;
    if problem is not null then
      return problem;
    end if;
  end loop;
  return null;
end
$$;

create function stepwell._array_problem(root jsonb, schema jsonb, value jsonb, path text) returns text
language plpgsql stable as $$
declare
  first constant integer := coalesce(jsonb_array_length(schema -> 'prefixItems'), 0);
  part record;
  problem text;
begin
  if jsonb_array_length(value) < (schema ->> 'minItems')::integer then
    return format('%s: has %s items, at least %s are expected', path, jsonb_array_length(value), schema ->> 'minItems');
  elsif jsonb_array_length(value) > (schema ->> 'maxItems')::integer then
    return format('%s: has %s items, at most %s are allowed', path, jsonb_array_length(value), schema ->> 'maxItems');
  end if;
  for part in select a.value, a.place - 1 as index from jsonb_array_elements(value) with ordinality a(value, place) loop
    problem := stepwell._schema_problem(
      root, case when part.index < first then schema -> 'prefixItems' -> part.index::integer else schema -> 'items' end,
      part.value, format('%s[%s]', path, part.index));
    if problem is not null then
      return problem;
    end if;
  end loop;
  return null;
end
$$;

create function stepwell._string_problem(schema jsonb, value text, path text) returns text
language plpgsql stable as $$
begin
  if char_length(value) < (schema ->> 'minLength')::integer then
    return format('%s: has %s characters, at least %s are expected', path, char_length(value), schema ->> 'minLength');
  elsif char_length(value) > (schema ->> 'maxLength')::integer then
    return format('%s: has %s characters, at most %s are allowed', path, char_length(value), schema ->> 'maxLength');
  end if;
  case schema ->> 'format'  -- Postgres reads more than ISO 8601 has, as 'today'
    when 'date-time' then
      perform value::timestamptz;
      if value !~ '^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d' then
        return path || ': expected a date and time as ISO 8601 has it';
      end if;
    when 'date' then
      perform value::date;
      if value !~ '^\d{4}-\d\d-\d\d$' then
        return path || ': expected a date as ISO 8601 has it';
      end if;
    when 'uuid' then perform value::uuid;
    when 'decimal' then perform value::numeric;
    else null;
  end case;
  return null;
exception when data_exception then
  return format('%s: expected %s', path, schema ->> 'format');
end
$$;

create function stepwell._number_problem(schema jsonb, value numeric, path text) returns text
language sql stable as $$
select case
  when value < (schema ->> 'minimum')::numeric then format('%s: expected at least %s', path, schema ->> 'minimum')
  when value > (schema ->> 'maximum')::numeric then format('%s: expected at most %s', path, schema ->> 'maximum')
  when value <= (schema ->> 'exclusiveMinimum')::numeric
    then format('%s: expected more than %s', path, schema ->> 'exclusiveMinimum')
  when value >= (schema ->> 'exclusiveMaximum')::numeric
    then format('%s: expected less than %s', path, schema ->> 'exclusiveMaximum')
  when value % nullif((schema ->> 'multipleOf')::numeric, 0) <> 0
    then format('%s: expected a multiple of %s', path, schema ->> 'multipleOf')
end
$$;

-- What is wrong with a reply by the schema of its type; null if nothing is.
create function stepwell._reply_problem(schema jsonb, reply jsonb) returns text
language plpgsql stable as $$
begin
  return stepwell._schema_problem(schema, schema, reply, 'reply');
exception when statement_too_complex then  -- a type that holds itself, some hundred times
  return 'reply: is nested too deep to be checked in SQL; answer where its type is known';
end
$$;

-- The engine's own statements, for the SQL doors: see 0003_statements.
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
      visit = i.visit + (i.filling_unit_id is not null)::integer, filling_unit_id = null,
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


create or replace function stepwell._interactions_find(uuid[], uuid[], text[])
returns table ("position" integer, "id" text, "unit_id" bigint, "instance_id" bigint, "machine" text, "version" integer, "step" text, "type_id" text, "reference" text)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Find questions, each by its id or by its correlation, within a tenant, before anything is locked. If both are given,
-- both must fit.
-- Index: the primary key (|| '': no other), interactions_correlation. Locks: none.
-- Returns: one row per question that is there: its place in the arrays, its ids, who asked, and the reply's type.
select (g.place - 1)::integer as position, q.id::text as id, q.unit_id, q.instance_id, u.machine, u.version, u.step,
       u.reply_type as type_id, t.reference::text as reference
from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as g(id, correlation, tenant, place)
cross join lateral (
  select i.*
  from stepwell.interactions i
  where i.id = any (array[g.id]) and i.tenant || '' = g.tenant
    and (g.correlation is null or i.correlation = g.correlation)
  union all
  select i.* from stepwell.interactions i where g.id is null and i.tenant = g.tenant and i.correlation = g.correlation
) q
join stepwell.await_units u on u.id = any (array[q.unit_id])
join stepwell.reply_types t on t.id = any (array[u.reply_type])
order by g.place;
end
$$;
revoke execute on function stepwell._interactions_find from public;


create or replace function stepwell._interactions_admit(json)
returns table ("position" integer, "verdict" text, "problem" text, "status" text, "unit_id" bigint, "was_out" boolean)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Judge answers to questions, and take those in that may be. They come as one JSON array; no question twice in it.
-- Run in a transaction that has locked their instances before this statement: nobody else ends these questions now.
-- Keeps: the order of the checks (token, answered before, closed, too late, type, which includes that a list has no
--   more than 10,000 items: a step is handed all of them at once); whatever is refused changes nothing.
--   `token` has the facts of a token whose signature was verified, `seal` the hash of one that nobody could verify.
-- Index: the primary keys (|| '': no other). Locks: the questions that are answered.
-- Returns: per answer its place, the verdict, what is wrong with the reply, the status it found, and whether the
--   question was out.
with given as materialized (
  select g.position, g.id, coalesce(g.reply, 'null') as reply, g.actor, g.token, g.seal, g.is_checked, g.problem
  from json_to_recordset($1::json) as g(
         position integer, id uuid, reply jsonb, actor text, token jsonb, seal text, is_checked boolean, problem text)
), judged as materialized (
  select g.position, g.id, g.reply, g.actor, q.unit_id, q.status,
         case
           when g.token is not null then
             case when g.token = jsonb_build_array(q.tenant, q.id::text, q.correlation::text, q.instance_id, u.step,
                                                   floor(extract(epoch from q.deadline) * 1000)::bigint)
                  then null else 'token' end
           when g.seal is not null then case when g.seal = encode(q.seal, 'hex') then null else 'token' end
           when u.requires_token then 'token'
         end as refusal,
         case
           when q.status = 'completed' then case when q.reply = g.reply then 'duplicate' else 'conflict' end
           when q.status in ('timed_out', 'failed', 'cancelled') then 'closed'
           when q.deadline <= stepwell.now() then 'late'
         end as past,
         case
           when case jsonb_typeof(g.reply) when 'array' then jsonb_array_length(g.reply) > 10000 else false end then
             format('reply: has %s items, one answer may have 10000', jsonb_array_length(g.reply))
           when g.is_checked then g.problem
           else stepwell._reply_problem(t.schema, g.reply)
         end as problem
  from given g
  join stepwell.interactions q on q.id = any (array[g.id])
  join stepwell.await_units u on u.id = any (array[q.unit_id])
  join stepwell.reply_types t on t.id = any (array[u.reply_type])
), admitted as (
  update stepwell.interactions q
  set status = 'completed', reply = j.reply, actor = j.actor, finished_at = stepwell.now(), error = null
  from judged j
  where q.id = any (array[j.id]) and coalesce(j.refusal, j.past, j.problem) is null
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select j.position, coalesce(j.refusal, j.past, case when j.problem is null then 'admitted' else 'type' end) as verdict,
       j.problem, j.status, j.unit_id, j.status <> 'queued' as was_out
from judged j
order by j.position;
end
$$;
revoke execute on function stepwell._interactions_admit from public;


create or replace function stepwell._units_settle(bigint[], integer[], integer[], text[], boolean[])
returns table ("queues" text[], "transports" text[], "next_deadline" float8)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Count what was resolved at its units; end units that have nothing open any more, or whose time is over; let the next
-- items of a window out, and instances go on that waited for a unit.
-- Run in a transaction that has locked the instances before its last statement: nobody else changes these units.
-- $2: questions that were answered, timed out or failed for good; $3: those of them that were out; $4: what ends a unit
--   early ('timed_out', 'failed'), if it is one question or is to fail; $5: its last question has been asked.
-- Keeps: the first end of a unit stands; a unit that ended early leaves no question open; an instance goes on once, and
--   only from the unit it waits for; one that parks at a unit which ended before goes on at once.
-- Index: the primary keys (|| '': no other), interactions_queued, interactions_item.
-- Locks: units, then interactions, then the instances (ours already).
-- Returns: one row: the queues of instances that go on, the transports with something to send, and the seconds to the
--   first deadline of what was let out.
with given as materialized (
  select g.unit_id, g.ended, g.is_filled, u.in_flight - g.returned as out,
         least(u."window" - (u.in_flight - g.returned),
               u.opened - u.resolved - g.resolved - (u.in_flight - g.returned)) as room,
         g.resolved,
         case
           when u.status <> 'waiting' then u.status
           when g.ended = 'timed_out' and (u."window" is null or u.on_timeout = 'fail') then 'timed_out'
           when g.ended = 'failed' and u."window" is null then 'failed'
           when (u.is_filled or g.is_filled) and u.resolved + g.resolved >= u.opened then 'completed'
           else 'waiting'
         end as status
  from unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::boolean[])
       as g(unit_id, resolved, returned, ended, is_filled)
  join stepwell.await_units u on u.id = any (array[g.unit_id])
  where u.status || '' = 'waiting' or g.is_filled
  order by g.unit_id
), counted as (
  update stepwell.await_units u
  set resolved = u.resolved + g.resolved,
      in_flight = g.out + case when g.status = 'waiting' then coalesce(g.room, 0) else 0 end,
      is_filled = u.is_filled or g.is_filled,
      status = g.status,
      finished_at = case when g.status <> 'waiting' then coalesce(u.finished_at, stepwell.now()) end
  from given g
  where u.id = any (array[g.unit_id]) and (u.status || '' = 'waiting' or g.is_filled)
  returning u.id, u.instance_id, u.status, u.is_sent, u.timeout, u.transport,
            case when g.status = 'waiting' then g.room end as room
), closed as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select c.id from counted c where c.status in ('timed_out', 'failed')))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
), next_ones as materialized (
  select n.id, c.is_sent, c.timeout
  from counted c
  cross join lateral (
    select q.id
    from stepwell.interactions q
    where q.unit_id = c.id and q.status = 'queued'
    order by q.item
    limit c.room
  ) n
  where c.room > 0
), released as (
  update stepwell.interactions q
  set status = case when n.is_sent then 'waiting' else 'dispatched' end, deadline = stepwell.now() + n.timeout,
      next_at = stepwell.now()
  from next_ones n
  where q.id = any (array[n.id])
  returning case when n.is_sent then q.transport end as transport, n.timeout
), woken as (
  update stepwell.instances i
  set status = 'runnable', due_at = stepwell.now(), updated_at = stepwell.now()
  from counted c
  where i.id = any (array[c.instance_id]) and i.status || '' = 'awaiting_external' and i.await_unit_id = c.id
    and c.status <> 'waiting'
  returning i.queue
)
select array(select w.queue from woken w) as queues,
       array(select distinct r.transport from released r where r.transport is not null) as transports,
       (select extract(epoch from min(r.timeout))::float8 from released r) as next_deadline;
end
$$;
revoke execute on function stepwell._units_settle from public;


create or replace function stepwell._units_close(bigint[])
returns table ("id" bigint)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Close what instances still ask, because they have ended, or gone elsewhere. Run after they were locked.
-- Keeps: a unit that has ended stays as it is; nothing stays open.
-- Index: await_units_open, interactions_item. Locks: units, then interactions. Returns: the ids of closed units.
with closed as (
  update stepwell.await_units u
  set status = 'cancelled', finished_at = stepwell.now()
  where u.instance_id = any ($1::bigint[]) and u.status = 'waiting'
  returning u.id
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select c.id from closed c))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select c.id from closed c;
end
$$;
revoke execute on function stepwell._units_close from public;

-- What a token says, whoever has made it: [tenant, interaction, …]; null if it is none.
create function stepwell._token_facts(token text) returns jsonb
language plpgsql immutable as $$
declare
  payload constant text := translate(split_part(token, '.', 3), '-_', '+/');
  facts jsonb;
begin
  facts := convert_from(decode(rpad(payload, (length(payload) + 3) / 4 * 4, '='), 'base64'), 'UTF8');
  return case when jsonb_typeof(facts) = 'array' and (facts ->> 1)::uuid is not null then facts end;
exception when data_exception then
  return null;
end
$$;

-- Answer a question: by its id, its correlation or its token. One transaction with the caller's: when that commits, the
-- instance may go on. A repeated answer gives is_duplicate; one that is refused changes nothing, and raises. A token is
-- checked against the one that was handed out last: the secret is nowhere in the database.
create function stepwell.complete(
  reply jsonb, interaction uuid default null, correlation uuid default null, token text default null,
  actor text default null, tenant text default '', notify boolean default true)
returns table (interaction_id uuid, instance_id bigint, is_duplicate boolean)
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
  largest constant bigint := (select m.max_payload from stepwell.meta m);
  given constant jsonb := coalesce(complete.reply, 'null');
  seal constant text := encode(sha256(convert_to(complete.token, 'UTF8')), 'hex');
  facts constant jsonb := case when complete.interaction is null and complete.correlation is null
                               then stepwell._token_facts(complete.token) end;
  asked record;
  judged record;
  settled record;
begin
  perform stepwell._check_isolation();
  if octet_length(given::text) > largest then
    perform stepwell._refuse('SW004', 'reply', format(
      '%s bytes are more than max_payload (%s); send a reference instead', octet_length(given::text), largest));
  elsif stepwell._json_problem(given) is not null then
    perform stepwell._refuse('SW001', 'reply', stepwell._json_problem(given));
  elsif complete.interaction is null and complete.correlation is null and complete.token is null then
    perform stepwell._refuse('SW001', 'interaction', 'name the question by its id, its correlation or its token');
  elsif complete.interaction is null and complete.correlation is null and facts is null then
    perform stepwell._refuse('SW022', 'token', 'is malformed; hand it on as it was issued');
  elsif stepwell._name_problem(complete.actor) is not null then
    perform stepwell._refuse('SW001', 'actor', stepwell._name_problem(complete.actor));
  elsif stepwell._name_problem(complete.tenant, true) is not null then
    perform stepwell._refuse('SW001', 'tenant', stepwell._name_problem(complete.tenant, true));
  end if;

  select f.id, f.instance_id into asked
  from stepwell._interactions_find(
    array[coalesce(complete.interaction, (facts ->> 1)::uuid)], array[complete.correlation],
    array[coalesce(nullif(complete.tenant, ''), facts ->> 0, '')]) f;
  if not found then
    perform stepwell._refuse('SW021', 'interaction', format(
      'nobody asked %s, or another tenant did; it may also have been pruned',
      coalesce(complete.interaction, complete.correlation, (facts ->> 1)::uuid)));
  end if;
  perform stepwell._operators_lock(array[asked.instance_id]);
  select a.verdict, a.problem, a.status, a.unit_id, a.was_out into judged
  from stepwell._interactions_admit(json_build_array(json_build_object(
    'position', 0, 'id', asked.id, 'reply', given, 'actor', complete.actor, 'seal', seal, 'is_checked', false))) a;

  case judged.verdict
    when 'token' then perform stepwell._refuse('SW022', 'token', case
      when complete.token is null then 'is required for this question'
      else 'is not the one that was handed out for this question' end);
    when 'conflict' then perform stepwell._refuse('SW023', 'reply', 'the question was answered before, with another one');
    when 'closed' then
      perform stepwell._refuse('SW024', 'interaction', format('is closed: %s', replace(judged.status, '_', ' ')));
    when 'late' then perform stepwell._refuse('SW025', 'interaction', 'its deadline has passed');
    when 'type' then perform stepwell._refuse('SW026', 'reply', judged.problem);
    when 'duplicate' then null;
    else
      select s.queues, s.transports, s.next_deadline into settled
      from stepwell._units_settle(array[judged.unit_id], array[1], array[judged.was_out::integer], array[null::text],
                                  array[false]) s;
      if complete.notify is not false then
        perform pg_notify('stepwell_work', q.queue) from unnest(settled.queues) q(queue);
        perform pg_notify('stepwell_dispatch', t.transport) from unnest(settled.transports) t(transport);
        if settled.next_deadline is not null then
          perform pg_notify('stepwell_due', '');
        end if;
      end if;
  end case;
  return query select asked.id::uuid, asked.instance_id, judged.verdict = 'duplicate';
end
$$;

-- As before, and what a cancelled instance asked is closed.
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
    perform stepwell._units_close(ids);
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
