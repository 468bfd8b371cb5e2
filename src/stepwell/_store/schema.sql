-- The schema `stepwell` as all migrations together leave it, for reading. Generated; tests hold it equal to them:
--   .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
-- Why things are as they are stands in the migrations.

create schema stepwell;

CREATE OR REPLACE FUNCTION stepwell._answer_one(instance_id bigint, answer json)
 RETURNS TABLE(verdict text, problem text, status text, queues text[], transports text[], next_deadline double precision)
 LANGUAGE plpgsql
AS $function$
declare
  judged record;
  settled record;
begin
  perform from stepwell.instances i where i.id = _answer_one.instance_id for no key update skip locked;
  if not found and exists (select from stepwell.instances i where i.id = _answer_one.instance_id) then
    return;
  end if;
  select a.* into judged from stepwell._interactions_admit(_answer_one.answer) a;
  if not found then
    return;
  end if;
  queues := '{}';
  if judged.verdict = 'admitted' then
    select s.* into settled
    from stepwell._units_settle(array[judged.unit_id], array[1], array[judged.was_out::integer], array[null::text],
                                array[false], array[(judged.continues_in is not null)::integer], array[0]) s;
    queues := settled.queues || judged.continues_in;
    transports := settled.transports;
    next_deadline := settled.next_deadline;
  end if;
  verdict := judged.verdict;
  problem := judged.problem;
  status := judged.status;
  return next;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._array_problem(root jsonb, schema jsonb, value jsonb, path text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
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

CREATE OR REPLACE FUNCTION stepwell._check_key_id(key_id text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  if key_id is null or key_id !~ '^[A-Za-z0-9_-]{1,32}$' then
    perform stepwell._refuse(
      'SW001', 'key_id', 'is not of 1 to 32 letters, digits, ''_'' or ''-''; name the key as in token_keys');
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._check_shape(what text, given jsonb, fields jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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

CREATE OR REPLACE FUNCTION stepwell._claim_slots(by_worker bigint, of_queue text, most integer, labels text[], passed_over text[])
 RETURNS TABLE(verdict text, id bigint, machine text, version integer, fence bigint, step text, attempt integer, crashes integer, tenant text, key text, claimed_at timestamp with time zone, has_inbox boolean, awaits text[], parent_id bigint, round integer, priority smallint, concurrency_limit text, own_limit text, weight integer, await_unit_id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  ids bigint[];
  names text[];
  is_plain boolean;
  moment timestamptz;
begin
  perform set_config('synchronous_commit', 'off', true);

  -- Whoever waits for a limit holds up nobody's row: a look without locks tells which limits there are to wait for.
  select array_agg(distinct w.concurrency_limit), bool_and(w.is_plain)
  into names, is_plain
  from (
    select i.concurrency_limit,
           i.concurrency_limit is not null and i.rate_limit is null and i.concurrency_key is null
             and (i.machine || '@' || i.version) = any (labels) as is_plain
    from stepwell.instances i
    where i.queue = of_queue and i.status = 'runnable' and i.hold is null and i.share is null
      and (passed_over = '{}' or not (i.machine || '@' || i.version) = any (passed_over))
    order by i.priority, i.due_at, i.id
    limit most
  ) w;
  if is_plain is null then
    return;
  end if;
  if is_plain then
    perform pg_advisory_xact_lock_shared(n.hash)
    from (select distinct hashtextextended('stepwell limit:' || split_part(g.name, ':', 1), 0) as hash
          from unnest(names) as g(name)
          order by 1) n;
    select bool_and(exists (select from stepwell.limits l where l.kind = 'concurrency' and l.name = d.name))
    into is_plain
    from (select distinct split_part(g.name, ':', 1) as name from unnest(names) as g(name)) d;
  end if;
  if not is_plain then
    verdict := 'mixed';
    return next;
    return;
  end if;
  perform stepwell._lock_limits(names);

  -- What stands there by now: others may have taken some, or hold some locked. What needs anything else is missed.
  select array_agg(w.id) filter (where w.is_plain), array_agg(w.concurrency_limit) filter (where w.is_plain),
         bool_and(w.is_plain)
  into ids, names, is_plain
  from (
    select i.id, i.concurrency_limit,
           coalesce(i.concurrency_limit = any (names), false) and i.rate_limit is null and i.concurrency_key is null
             and (i.machine || '@' || i.version) = any (labels) as is_plain
    from stepwell.instances i
    where i.queue = of_queue and i.status = 'runnable' and i.hold is null and i.share is null
      and (select stepwell._may_claim(of_queue))
      and (passed_over = '{}' or not (i.machine || '@' || i.version) = any (passed_over))
    order by i.priority, i.due_at, i.id
    limit most
    for no key update skip locked
  ) w;
  if not is_plain then
    verdict := 'missed';
    return next;
  end if;

  moment := clock_timestamp();  -- a claim counts from here on: the statement may have waited for long
  return query
  with gates as materialized (
    select w.name, array_agg(w.id order by w.place) as ids
    from unnest(ids, names) with ordinality as w(id, name, place)
    group by w.name
  ), chosen as materialized (
    select c.id, c.slot
    from gates g
    join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.name, ':', 1)])
    cross join lateral (
      select array(select e.slot
                   from stepwell.instances e
                   where e.concurrency_limit = g.name and e.status = 'executing' and e.slot is not null) as slots
      offset 0
    ) taken
    -- The lowest free numbers, as many as may be given; whoever gets none has null.
    cross join lateral unnest(g.ids, array(
      select s.slot
      from (select generate_series(1, least(l.n, cardinality(taken.slots) + cardinality(g.ids))) as slot
            except
            select unnest(taken.slots)) s
      order by s.slot
      limit greatest(least(l.n - cardinality(taken.slots), cardinality(g.ids)), 0)
    )) as c(id, slot)
  ), written as (
    update stepwell.instances i
    set status = case when c.slot is null then i.status else 'executing' end,
        slot = c.slot,
        worker_id = case when c.slot is not null then by_worker end,
        claimed_at = case when c.slot is not null then moment end,
        fence = i.fence + (c.slot is not null)::integer,
        hold = case when c.slot is null then 'limit' end,
        hold_reason = case when c.slot is not null then i.hold_reason end,
        updated_at = case when c.slot is null then i.updated_at else stepwell.now() end
    from chosen c
    where i.id = any (array[c.id])
    returning i.*
  )
  select case when w.slot is null then 'held' else 'claimed' end, w.id, w.machine, w.version, w.fence, w.step,
         w.attempt, w.crashes, w.tenant, w.key, w.claimed_at, w.has_inbox, w.awaits, w.parent_id, w.round, w.priority,
         w.concurrency_limit, w.own_limit, w.weight, w.await_unit_id
  from written w
  order by w.priority, w.due_at, w.id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._correlation(tenant text, instance bigint, visit integer, item integer, key text)
 RETURNS uuid
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
select encode(substr(sha256(convert_to(concat_ws(E'\x1f', tenant, instance, visit, item, key), 'UTF8')), 1, 16), 'hex')::uuid
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
   where i.tenant = $1 and i.key = $2 and (i.key_scope = 'forever' or i.finished_at is null)),
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
left join stepwell.instances i
  on i.tenant = k.tenant and i.key = k.key and (i.key_scope = 'forever' or i.finished_at is null)
left join stepwell.tombstones t on t.tenant = k.tenant and t.key = k.key
where i.id is not null or t.instance_id is not null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_start(text[], integer[], text[], text[], smallint[], interval[], timestamp with time zone[], text[], text[], text[], text[], text[], bigint[], integer[], integer[], boolean[], text[])
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

CREATE OR REPLACE FUNCTION stepwell._interactions_admit(json)
 RETURNS TABLE("position" integer, verdict text, problem text, status text, unit_id bigint, was_out boolean, continues_in text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Judge answers to questions, and take those in that may be. They come as one JSON array; no question twice in it.
-- Run in a transaction that has locked their instances before this statement: nobody else ends these questions now.
-- Keeps: the order of the checks (token, answered before, closed, too late, type, which includes that a list has no
--   more than `max_items`: a step is handed all of them at once); whatever is refused changes nothing.
--   `facts` is what was sent, if a projector has made the reply of it: a repeated answer is known by that.
--   `token` has the facts of a token, which fit the question as it stands. Its signature was verified, or else `seal`
--   is its hash, one of those that were handed out. `token_key` is the id of its key; a retired one signs for nobody.
--   An answer to a unit with an `item_step` goes on by itself: an instance of the machine that asked, at that step,
--   with the item's number and the answer as its state; it is counted at the unit, and is nobody's child.
-- Index: the primary keys (|| '': no other); queues_fair, once. The retired keys are read once, and only for a token.
-- Locks: the questions that are answered.
-- Returns: per answer its place, the verdict, what is wrong with the reply, the status it found, whether the question
--   was out, and the queue in which the answer goes on by itself.
with given as materialized (
  select g.position, g.id, coalesce(g.reply, 'null') as reply, g.facts, g.actor, g.token, g.token_key, g.seal,
         g.is_checked, g.problem
  from json_to_recordset($1::json) as g(
         position integer, id uuid, reply jsonb, facts jsonb, actor text, token jsonb, token_key text, seal text,
         is_checked boolean, problem text)
), judged as materialized (
  select g.position, g.id, g.reply, g.facts, g.actor, q.unit_id, q.status, u.item_step,
         case
           when g.token is null and g.seal is null then case when u.requires_token then 'token' end
           when g.token_key = any (array(select r.key_id from stepwell.retired_token_keys r)) then 'retired'
           when g.token = jsonb_build_array(q.tenant, q.id::text, q.correlation::text, q.instance_id, u.step,
                                            floor(extract(epoch from q.deadline) * 1000)::bigint)
             and (g.seal is null or decode(g.seal, 'hex') = any (array_append(q.earlier_seals, q.seal))) then null
           else 'token'
         end as refusal,
         case
           when q.status = 'completed' then
             case when coalesce(q.facts, q.reply) = coalesce(g.facts, g.reply) then 'duplicate' else 'conflict' end
           when q.status in ('timed_out', 'failed', 'cancelled') then 'closed'
           when q.deadline <= stepwell.now() then 'late'
         end as past,
         case
           when case when jsonb_typeof(g.reply) = 'array' then jsonb_array_length(g.reply) > nullif(u.max_items, 0) end
             then format('reply: has %s items, one answer may have %s', jsonb_array_length(g.reply), u.max_items)
           when g.is_checked then g.problem
           when t.reference ->> 0 = 'projected' then
             format('projector: %s is not in the process that answers: answer where its pipeline is', t.reference ->> 3)
           else stepwell._reply_problem(t.schema, g.reply)
         end as problem
  from given g
  join stepwell.interactions q on q.id = any (array[g.id])
  join stepwell.await_units u on u.id = any (array[q.unit_id])
  join stepwell.reply_types t on t.id = any (array[u.reply_type])
), admitted as (
  update stepwell.interactions q
  set status = 'completed', reply = j.reply, facts = j.facts, actor = j.actor, finished_at = stepwell.now(),
      error = null
  from judged j
  where q.id = any (array[j.id]) and coalesce(j.refusal, j.past, j.problem) is null
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
  returning q.id, q.item, q.reply, q.unit_id, q.instance_id, j.item_step
), continuing as materialized (
  select a.id as question, a.item, a.reply, a.unit_id, a.item_step, p.id as parent_id, p.tenant, p.machine, p.version,
         p.queue, p.priority, nextval('stepwell.instances_id_seq') as id
  from admitted a
  join stepwell.instances p on p.id = any (array[a.instance_id])
  where a.item_step is not null
), started as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, tenant, parent_id, child_index, continues_unit_id, created_at,
     updated_at, share)
  overriding system value
  select c.id, c.machine, c.version, c.item_step, c.queue, c.priority, stepwell.now(), c.tenant, c.parent_id, c.item,
         c.unit_id, stepwell.now(), stepwell.now(),
         case when c.queue = any (array(select f.name from stepwell.queues f where f.fair_by is not null))
              then hashtextextended(c.tenant, 0) end
  from continuing c
), stored as (
  insert into stepwell.instance_data (id, state)
  select c.id, jsonb_build_object('item', c.item, 'value', c.reply)
  from continuing c
), queues as materialized (
  select jsonb_object_agg(c.question, c.queue) as by_question from continuing c
)
select j.position, coalesce(j.refusal, j.past, case when j.problem is null then 'admitted' else 'type' end) as verdict,
       j.problem, j.status, j.unit_id, j.status <> 'queued' as was_out,
       (select q.by_question from queues q) ->> j.id::text as continues_in
from judged j
order by j.position;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._interactions_find(uuid[], uuid[], text[])
 RETURNS TABLE("position" integer, id text, unit_id bigint, instance_id bigint, machine text, version integer, step text, reference text, request text, asked_at timestamp with time zone)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find questions, each by its id or by its correlation, within a tenant, before anything is locked. If both are given,
-- both must fit.
-- Index: the primary key (|| '': no other), interactions_correlation. Locks: none.
-- Returns: one row per question that is there: its place in the arrays, its ids, who asked, and the reply's type; if a
--   projector makes the reply, also the request, and what time it is.
select (g.place - 1)::integer as position, q.id::text as id, q.unit_id, q.instance_id, u.machine, u.version, u.step,
       t.reference::text as reference, case when t.reference ->> 0 = 'projected' then q.request::text end as request,
       case when t.reference ->> 0 = 'projected' then stepwell.now() end as asked_at
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._json_problem(value jsonb)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._let_go(keys text[], most integer[])
 RETURNS TABLE(queue text)
 LANGUAGE plpgsql
AS $function$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform stepwell._lock_limits(keys);
  return query select f.queue from stepwell._limits_free(keys, most, false) f;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._limit_name_problem(kind text, given text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._limit_problem(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
 RETURNS text[]
 LANGUAGE plpgsql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._limits_free(text[], integer[], boolean)
 RETURNS TABLE(queue text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Let the most urgent rows of each line go, as many as there is room for, and at most $2 of each (null: no matter how
-- many). Run under limits/lock.sql, after the statement that made room.
-- Keeps: nothing is let go while the limit is full; a limit that nobody declares lets nobody go. Those of queues that
--   are claimed from go first: the backlog of a paused queue, or of one that no worker serves, blocks no other.
--   With $3 somebody looks who made no room himself: those let go before may not be claimed yet, and some not for long,
--   for want of a worker with free hands. So of each queue go fewer by as many as were let go and are seen among the
--   first of the queue; and the first of every queue that is claimed from goes, so that none waits for another's hands.
-- Index: instances_slot; instances_in_limit_line, one step per queue, and then only rows that may go; the primary key;
--   with $3 up to 100 rows per queue of instances_claim and of instances_fair.
-- Locks: the rows, skip locked (what a foreign transaction holds is passed over; keys/find_idle.sql finds it).
-- Returns: the queue of each row let go.
with recursive room as materialized (
  select g.key, least(g.most, l.n - (select count(*)
                                     from stepwell.instances e
                                     where e.concurrency_limit = g.key and e.status = 'executing'
                                       and e.slot is not null))::integer as number
  from unnest($1::text[], $2::integer[]) as g(key, most)
  join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), queues(key, number, queue) as (
  select r.key, r.number, (select i.queue
                           from stepwell.instances i
                           where i.concurrency_limit = r.key and i.status = 'runnable' and i.hold = 'limit'
                             and i.hold_reason is null
                           order by i.queue
                           limit 1)
  from room r
  where r.number > 0
  union all
  select q.key, q.number, (select i.queue
                           from stepwell.instances i
                           where i.concurrency_limit = q.key and i.status = 'runnable' and i.hold = 'limit'
                             and i.hold_reason is null and i.queue > q.queue
                           order by i.queue
                           limit 1)
  from queues q
  where q.queue is not null
), offered as materialized (
  select n.id, q.number,
         row_number() over (partition by q.key order by s.is_served desc, n.priority, n.due_at, n.id) as place,
         s.is_served and row_number() over (partition by q.key, q.queue order by n.priority, n.due_at, n.id) = 1
           as is_first
  from queues q
  cross join lateral (
    select exists (select from stepwell.workers w where w.lease_until > pg_catalog.now() and w.queues ? q.queue)
           and not exists (select from stepwell.queues p where p.name = q.queue and p.paused_at is not null)
             as is_served,
           case when $3::boolean
                then (select count(*)
                      from ((select i.concurrency_limit
                             from stepwell.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null and i.share is null
                             order by i.priority, i.due_at, i.id
                             limit 100)
                            union all
                            (select i.concurrency_limit
                             from stepwell.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null
                               and i.share is not null
                             order by i.priority, i.share, i.due_at, i.id
                             limit 100)) f
                      where f.concurrency_limit = q.key)
                else 0 end as let_go
    offset 0
  ) s
  cross join lateral (
    select i.id, i.priority, i.due_at
    from stepwell.instances i
    where i.concurrency_limit = q.key and i.queue = q.queue and i.status = 'runnable' and i.hold = 'limit'
      and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit greatest(q.number - s.let_go, 0)
  ) n
  where q.queue is not null
), following as materialized (
  select i.id
  from offered o join stepwell.instances i on i.id = any (array[o.id])
  where (o.place <= o.number or $3 and o.is_first) and i.hold = 'limit' and i.status || '' = 'runnable'
  for no key update of i skip locked
)
update stepwell.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._lock_limits(names text[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  perform pg_advisory_xact_lock(n.hash)
  from (select distinct hashtextextended('stepwell:limit:' || g.name, 0) as hash
        from unnest(names) as g(name)
        order by 1) n;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._may_claim(queue text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform pg_advisory_xact_lock_shared(hashtextextended('stepwell queue:' || queue, 0));
  return not exists (select from stepwell.queues q where q.name = queue and q.paused_at is not null);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._name_problem(name text, may_be_empty boolean DEFAULT false)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
select case
  when name = '' and not may_be_empty then 'is empty; leave it out instead'
  when char_length(name) > 200 then format('has %s characters, 200 are allowed', char_length(name))
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._needs(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
select case
  when coalesce(concurrency_limit, rate_limit, declared ->> 0, declared ->> 1) is not null
    then jsonb_build_array(coalesce(declared ->> 0, concurrency_limit), concurrency_limit,
                           coalesce(rate_limit, declared ->> 1),
                           coalesce(weight::integer, case when rate_limit is null then (declared ->> 2)::integer end, 1)
                          )::text
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._number_problem(schema jsonb, value numeric, path text)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._object_problem(root jsonb, schema jsonb, value jsonb, path text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_cancel(bigint[], text, text)
 RETURNS TABLE(id bigint, fence bigint, watched boolean, was_executing boolean, joins bigint, parent_round integer, continues bigint, concurrency_limit text)
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
            case when i.joined and not l.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not l.was_joined then i.continues_unit_id end as continues,
            i.concurrency_limit
), stored as (
  update stepwell.instance_data d
  set error = $2::text::jsonb, operated = $3::text::jsonb
                                       || jsonb_build_object('at', stepwell.now(), 'was', c.was, 'deadline', c.deadline)
  from cancelled c
  where d.id = c.id
)
select id, fence, watched, was_executing, joins, parent_round, continues, concurrency_limit
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
-- Find what a cancel concerns: an instance, its answers that go on by themselves and, if $2, all below it, as far as
-- they have not ended.
-- Keeps: of answers only those are read that have not ended (there may be a million that have): children have a round,
--   they have none.
-- Index: the primary key, instances_parent, await_units_open, instances_continuing. Locks: none.
-- Returns: id, concurrency key and parent of each.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t join stepwell.instances c on c.parent_id = t.id and c.parent_round is not null
  where $2::boolean
)
select i.id, i.concurrency_key, i.parent_id
from tree t join stepwell.instances i on i.id = t.id
where i.status not in ('done', 'failed', 'cancelled')
union all
select i.id, i.concurrency_key, i.parent_id
from tree t
join stepwell.await_units u on u.instance_id = t.id and u.status = 'waiting'
join stepwell.instances i on i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled');
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

CREATE OR REPLACE FUNCTION stepwell._read_time(written text)
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  if written ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$') then
    return written::timestamptz;
  end if;
  return null;
exception when data_exception then
  return null;
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

CREATE OR REPLACE FUNCTION stepwell._reply_problem(schema jsonb, reply jsonb)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  return stepwell._schema_problem(schema, schema, reply, 'reply');
exception when statement_too_complex then  -- a type that holds itself, some hundred times
  return 'reply: is nested too deep to be checked in SQL; answer where its type is known';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._schema_problem(root jsonb, schema jsonb, value jsonb, path text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._signal(ids bigint[], tenants text[], keys text[], names text[], payloads text[], dedup_keys text[], notify boolean)
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._signal_problem(id numeric, key text, name text, dedup_key text, tenant text, payload jsonb, is_checked boolean, largest bigint)
 RETURNS text[]
 LANGUAGE sql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._start(machines text[], versions integer[], steps text[], queues text[], priorities smallint[], delays interval[], times timestamp with time zone[], tenants text[], keys text[], key_scopes text[], concurrency_keys text[], states text[], unchecked boolean[], needs text[], notify boolean)
 RETURNS TABLE("position" integer, id bigint, is_duplicate boolean)
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._start_problem(machine text, version numeric, step text, key text, key_scope text, queue text, priority numeric, delay numeric, written_at text, at timestamp with time zone, concurrency_key text, tenant text, state jsonb, is_checked boolean, known text, steps text[], largest bigint)
 RETURNS text[]
 LANGUAGE sql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._string_problem(schema jsonb, value text, path text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION stepwell._token_facts(token text)
 RETURNS jsonb
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
  payload constant text := translate(split_part(token, '.', 3), '-_', '+/');
  facts jsonb;
begin
  facts := convert_from(decode(rpad(payload, (length(payload) + 3) / 4 * 4, '='), 'base64'), 'UTF8');
  return case when jsonb_typeof(facts) = 'array' and (facts ->> 1)::uuid is not null then facts end;
exception when data_exception then
  return null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._units_close(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Close what instances still ask, because they have ended, or gone elsewhere. Run after they were locked.
-- Keeps: a unit that has ended stays as it is; nothing stays open.
-- Index: await_units_open, interactions_item. Locks: units, then interactions. Returns: those of them whose answers go
-- on by themselves (drop_items.sql).
with closed as (
  update stepwell.await_units u
  set status = 'cancelled', finished_at = stepwell.now(), continuing = 0
  where u.instance_id = any ($1::bigint[]) and u.status = 'waiting'
  returning u.id, u.item_step
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select c.id from closed c))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select c.id from closed c where c.item_step is not null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._units_drop_items(bigint[])
 RETURNS TABLE(id bigint, revoked text, settled text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Cancel answers that go on by themselves at units which have ended: nobody waits for them any more.
-- Run after the instances that asked were locked: no new one comes, and none of these ends meanwhile.
-- Keeps: the fence grows, so that an outcome on its way is dropped. One that somebody holds right now, being claimed or
--   in a caller's transaction, is passed over: it comes to an end that counts nowhere.
-- Index: instances_continuing, driven from the units; the primary keys. Locks: the rows, skip locked.
-- Returns: the cancelled rows. Their workers, and who waits for them, are told with the commit: that is rare.
with live as materialized (
  select l.id, l.was
  from unnest($1::bigint[]) as u(id)
  cross join lateral (
    select i.id, i.status as was
    from stepwell.instances i
    where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
    for no key update skip locked
  ) l
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      worker_id = null, claimed_at = null, slot = null, hold = null, hold_reason = null, joined = true
  from live l
  where i.id = any (array[l.id])
  returning i.id, i.fence, i.watched, l.was = 'executing' as was_executing
), stored as (
  update stepwell.instance_data d
  set error = jsonb_build_object('type', 'Cancelled', 'traceback', null, 'message',
                                 'nobody waits for it any more: what asked has ended, or was led elsewhere')
  from cancelled c
  where d.id = any (array[c.id])
)
select c.id, case when c.was_executing then pg_notify('stepwell_revoked', c.id || ' ' || c.fence)::text end as revoked,
       case when c.watched then pg_notify('stepwell_settled', c.id::text)::text end as settled
from cancelled c;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._units_settle(bigint[], integer[], integer[], text[], boolean[], integer[], integer[])
 RETURNS TABLE(queues text[], transports text[], next_deadline double precision, dropped bigint[])
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Count what was resolved at its units; end units that have nothing open any more, or whose time is over; let the next
-- items of a window out, and instances go on that waited for a unit.
-- Run in a transaction that has locked the instances before its last statement: nobody else changes these units.
-- $2: questions that were answered, timed out or failed for good; $3: those of them that were out; $4: what ends a unit
--   early ('timed_out', 'failed'), if it is one question or is to fail; $5: its last question has been asked; $6, $7:
--   answers that go on by themselves from now on, and such that have come to their end.
-- Keeps: the first end of a unit stands; a unit that ended early leaves no question open; an instance goes on once, and
--   only from the unit it waits for; one that parks at a unit which ended before goes on at once. Answers that go on by
--   themselves are counted while the unit waits; one that fails ends it, and so does a question that can never be sent,
--   unless the unit is to go on without those that are not answered.
-- Index: the primary keys (|| '': no other), interactions_queued, interactions_item.
-- Locks: units, then interactions, then the instances (ours already).
-- Returns: one row: the queues of instances that go on, the transports with something to send, the seconds to the first
--   deadline of what was let out, and units that ended early while answers went on by themselves (drop_items.sql).
with given as materialized (
  select g.unit_id, g.ended, g.is_filled, u.in_flight - g.returned as out,
         least(u."window" - (u.in_flight - g.returned),
               u.opened - u.resolved - g.resolved - (u.in_flight - g.returned)) as room,
         g.resolved, u.continuing + g.continues - g.continued as continuing,
         case
           when u.status <> 'waiting' then u.status
           when g.ended = 'timed_out' and (u."window" is null or u.on_timeout = 'fail') then 'timed_out'
           when g.ended = 'failed' and (u."window" is null or g.continued > 0
                                      or u.item_step is not null and u.on_timeout = 'fail') then 'failed'
           when (u.is_filled or g.is_filled) and u.resolved + g.resolved >= u.opened
             and u.continuing + g.continues - g.continued = 0 then 'completed'
           else 'waiting'
         end as status
  from unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::boolean[], $6::integer[], $7::integer[])
       as g(unit_id, resolved, returned, ended, is_filled, continues, continued)
  join stepwell.await_units u on u.id = any (array[g.unit_id])
  where u.status || '' = 'waiting' or g.is_filled
  order by g.unit_id
), counted as (
  update stepwell.await_units u
  set resolved = u.resolved + g.resolved,
      in_flight = g.out + case when g.status = 'waiting' then coalesce(g.room, 0) else 0 end,
      is_filled = u.is_filled or g.is_filled,
      continuing = case when g.status = 'waiting' then g.continuing else 0 end,
      status = g.status,
      finished_at = case when g.status <> 'waiting' then coalesce(u.finished_at, stepwell.now()) end
  from given g
  where u.id = any (array[g.unit_id]) and (u.status || '' = 'waiting' or g.is_filled)
  returning u.id, u.instance_id, u.status, u.is_sent, u.timeout, u.transport, u.item_step,
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
       (select extract(epoch from min(r.timeout))::float8 from released r) as next_deadline,
       array(select c.id from counted c
             where c.item_step is not null and c.status in ('timed_out', 'failed')) as dropped;
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

CREATE OR REPLACE FUNCTION stepwell.complete(reply jsonb, interaction uuid DEFAULT NULL::uuid, correlation uuid DEFAULT NULL::uuid, token text DEFAULT NULL::text, actor text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS TABLE(interaction_id uuid, instance_id bigint, is_duplicate boolean)
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
  largest constant bigint := (select m.max_payload from stepwell.meta m);
  given constant jsonb := coalesce(complete.reply, 'null');
  seal constant text := encode(sha256(convert_to(complete.token, 'UTF8')), 'hex');
  signed constant jsonb := case when length(complete.token) <= 4096 then stepwell._token_facts(complete.token) end;
  signer constant text := split_part(complete.token, '.', 2);
  facts constant jsonb := case when complete.interaction is null and complete.correlation is null then signed end;
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
  select a.verdict, a.problem, a.status, a.unit_id, a.was_out, a.continues_in into judged
  from stepwell._interactions_admit(json_build_array(json_build_object(
    'position', 0, 'id', asked.id, 'reply', given, 'actor', complete.actor, 'token', signed, 'token_key', signer,
    'seal', seal, 'is_checked', false))) a;

  case judged.verdict
    when 'token' then perform stepwell._refuse('SW022', 'token', case
      when complete.token is null then 'is required for this question'
      else 'is none that was handed out for this question as it stands' end);
    when 'retired' then perform stepwell._refuse('SW022', 'token', format(
      'was signed with key %L, which is retired; hand out a new one, under another key', signer));
    when 'conflict' then perform stepwell._refuse('SW023', 'reply', 'the question was answered before, with another one');
    when 'closed' then
      perform stepwell._refuse('SW024', 'interaction', format('is closed: %s', replace(judged.status, '_', ' ')));
    when 'late' then perform stepwell._refuse('SW025', 'interaction', 'its deadline has passed');
    when 'type' then perform stepwell._refuse('SW026', 'reply', judged.problem);
    when 'duplicate' then null;
    else
      select s.queues, s.transports, s.next_deadline into settled
      from stepwell._units_settle(array[judged.unit_id], array[1], array[judged.was_out::integer], array[null::text],
                                  array[false], array[(judged.continues_in is not null)::integer], array[0]) s;
      if complete.notify is not false then
        perform pg_notify('stepwell_work', q.queue)
        from unnest(settled.queues || judged.continues_in) q(queue)
        where q.queue is not null;
        perform pg_notify('stepwell_dispatch', t.transport) from unnest(settled.transports) t(transport);
        if settled.next_deadline is not null then
          perform pg_notify('stepwell_due', '');
        end if;
      end if;
  end case;
  return query select asked.id::uuid, asked.instance_id, judged.verdict = 'duplicate';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN now();

CREATE OR REPLACE FUNCTION stepwell.reinstate_token_key(key_id text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform stepwell._check_key_id(reinstate_token_key.key_id);
  delete from stepwell.retired_token_keys r where r.key_id = reinstate_token_key.key_id;
  return found;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.retire_token_key(key_id text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform stepwell._check_key_id(retire_token_key.key_id);
  insert into stepwell.retired_token_keys values (retire_token_key.key_id) on conflict do nothing;
  return found;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.signal(name text, payload jsonb DEFAULT NULL::jsonb, id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, dedup_key text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS bigint
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
$function$;

CREATE OR REPLACE FUNCTION stepwell.start(machine text, state jsonb DEFAULT '{}'::jsonb, key text DEFAULT NULL::text, key_scope text DEFAULT 'live'::text, if_exists text DEFAULT 'raise'::text, queue text DEFAULT NULL::text, priority integer DEFAULT 0, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, step text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, version integer DEFAULT NULL::integer, tenant text DEFAULT ''::text, notify boolean DEFAULT true, concurrency_limit text DEFAULT NULL::text, rate_limit text DEFAULT NULL::text, weight integer DEFAULT NULL::integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET "TimeZone" TO 'UTC'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
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
  continued bigint[];
  unit bigint;
  settled record;
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
    continued := '{}';
    for ended in select * from stepwell._operators_cancel(ids, error, note) loop
      is_cancelled := is_cancelled or ended.id = root;
      if ended.continues is not null then
        continued := continued || ended.continues;
      end if;
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
    perform stepwell._units_drop_items(array(select c.id from stepwell._units_close(ids) c));
    foreach unit in array continued loop
      select s.queues, s.dropped into settled
      from stepwell._units_settle(array[unit], array[0], array[0], array['failed'], array[false], array[0], array[1]) s;
      queues := queues || settled.queues;
      perform stepwell._units_drop_items(settled.dropped);
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
$function$;

create table stepwell.await_units (
  id              bigint generated always as identity not null,
  instance_id     bigint not null,
  created_at      timestamp with time zone not null,
  finished_at     timestamp with time zone,
  timeout         interval,
  visit           integer not null,
  version         integer not null,
  "window"        integer,
  opened          integer default 0 not null,
  resolved        integer default 0 not null,
  in_flight       integer default 0 not null,
  is_filled       boolean default false not null,
  is_sent         boolean not null,
  requires_token  boolean not null,
  tenant          text collate "C" not null,
  machine         text collate "C" not null,
  step            text collate "C" not null,
  transport       text collate "C" not null,
  reply_type      text collate "C" not null,
  on_timeout      text collate "C" not null,
  status          text collate "C" default 'waiting'::text not null,
  item_step       text collate "C",
  continuing      integer default 0 not null,
  max_items       integer default 10000 not null,
  constraint await_units_pkey PRIMARY KEY (id),
  constraint continuing_not_negative CHECK (continuing >= 0),
  constraint no_more_than_opened CHECK (in_flight >= 0 AND resolved >= 0 AND (in_flight + resolved) <= opened),
  constraint no_more_than_window CHECK (in_flight <= "window"),
  constraint on_timeout_known CHECK (on_timeout = ANY (ARRAY['wake'::text, 'fail'::text])),
  constraint only_ended_has_end CHECK ((status = 'waiting'::text) = (finished_at IS NULL)),
  constraint status_known CHECK (status = ANY (ARRAY['waiting'::text, 'completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX await_units_open ON stepwell.await_units USING btree (instance_id)
  WHERE (status = 'waiting'::text);
CREATE UNIQUE INDEX await_units_visit ON stepwell.await_units USING btree (instance_id, visit);

create table stepwell.buckets (
  key          text collate "C" not null,
  tokens       double precision not null,
  refilled_at  timestamp with time zone not null,
  next_at      timestamp with time zone,
  constraint buckets_pkey PRIMARY KEY (key),
  constraint tokens_not_negative CHECK (tokens >= 0::double precision)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX buckets_next ON stepwell.buckets USING btree (next_at)
  WHERE (next_at IS NOT NULL);

create table stepwell.instance_data (
  id         bigint not null,
  state      jsonb not null,
  result     jsonb,
  error      jsonb,
  operated   jsonb,
  unchecked  boolean default false not null,
  constraint instance_data_pkey PRIMARY KEY (id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, fillfactor=50);

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
  slot               integer,
  own_limit          text collate "C",
  share              bigint,
  filling_unit_id    bigint,
  continues_unit_id  bigint,
  constraint instances_pkey PRIMARY KEY (id),
  constraint awaiting_signal_has_names CHECK (status <> 'awaiting_signal'::text OR awaits IS NOT NULL),
  constraint children_not_negative CHECK (children_pending >= 0),
  constraint executing_has_worker CHECK ((status = 'executing'::text) = (worker_id IS NOT NULL)),
  constraint finished_has_end CHECK ((status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint hold_known CHECK (hold = ANY (ARRAY['due'::text, 'key'::text, 'limit'::text, 'rate'::text, 'version'::text, 'unfit'::text, 'paused'::text])),
  constraint key_has_scope CHECK ((key IS NULL) = (key_scope IS NULL) AND (key_scope = ANY (ARRAY['live'::text, 'forever'::text]))),
  constraint only_executing_has_slot CHECK (slot IS NULL OR status = 'executing'::text),
  constraint only_runnable_is_held CHECK (hold IS NULL OR status = 'runnable'::text),
  constraint status_known CHECK (status = ANY (ARRAY['runnable'::text, 'executing'::text, 'awaiting_signal'::text, 'awaiting_children'::text, 'awaiting_external'::text, 'done'::text, 'failed'::text, 'cancelled'::text]))
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05, fillfactor=50);
CREATE INDEX instances_behind_key ON stepwell.instances USING btree (concurrency_key, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'key'::text));
CREATE INDEX instances_claim ON stepwell.instances USING btree (queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL) AND (share IS NULL));
CREATE UNIQUE INDEX instances_concurrency_key ON stepwell.instances USING btree (concurrency_key)
  WHERE ((status = 'executing'::text) AND (concurrency_key IS NOT NULL));
CREATE INDEX instances_continuing ON stepwell.instances USING btree (continues_unit_id)
  WHERE ((continues_unit_id IS NOT NULL) AND (status <> ALL (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])));
CREATE INDEX instances_deadline ON stepwell.instances USING btree (deadline)
  WHERE (deadline IS NOT NULL);
CREATE INDEX instances_due ON stepwell.instances USING btree (due_at)
  WHERE ((status = 'runnable'::text) AND (hold = 'due'::text));
CREATE INDEX instances_executing ON stepwell.instances USING btree (worker_id)
  WHERE (status = 'executing'::text);
CREATE INDEX instances_external ON stepwell.instances USING btree (id)
  WHERE (status = 'awaiting_external'::text);
CREATE INDEX instances_fair ON stepwell.instances USING btree (queue, priority, share, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL) AND (share IS NOT NULL));
CREATE INDEX instances_finished ON stepwell.instances USING btree (machine, finished_at, id)
  WHERE (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]));
CREATE UNIQUE INDEX instances_guard ON stepwell.instances USING btree (tenant, key)
  WHERE ((key IS NOT NULL) AND ((key_scope = 'forever'::text) OR (finished_at IS NULL)));
CREATE INDEX instances_in_limit_line ON stepwell.instances USING btree (concurrency_limit, queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'limit'::text) AND (hold_reason IS NULL));
CREATE INDEX instances_in_rate_line ON stepwell.instances USING btree (rate_limit, queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'rate'::text) AND (hold_reason IS NULL));
CREATE INDEX instances_key ON stepwell.instances USING btree (tenant, key, id)
  WHERE (key_scope IS NOT NULL);
CREATE INDEX instances_parent ON stepwell.instances USING btree (parent_id, parent_round, child_index)
  WHERE (parent_id IS NOT NULL);
CREATE UNIQUE INDEX instances_slot ON stepwell.instances USING btree (concurrency_limit, slot)
  WHERE ((status = 'executing'::text) AND (slot IS NOT NULL));
CREATE INDEX instances_unlimited ON stepwell.instances USING btree (hold, id)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['limit'::text, 'rate'::text])) AND (hold_reason IS NOT NULL));
CREATE INDEX instances_unrunnable ON stepwell.instances USING btree (hold, machine, version)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['version'::text, 'unfit'::text])));

create table stepwell.interactions (
  id               uuid not null,
  correlation      uuid not null,
  unit_id          bigint not null,
  instance_id      bigint not null,
  worker_id        bigint,
  created_at       timestamp with time zone not null,
  deadline         timestamp with time zone,
  next_at          timestamp with time zone not null,
  dispatched_at    timestamp with time zone,
  finished_at      timestamp with time zone,
  item             integer default 0 not null,
  attempts         integer default 0 not null,
  tenant           text collate "C" not null,
  transport        text collate "C" not null,
  status           text collate "C" not null,
  assignee         text collate "C",
  group_name       text collate "C",
  actor            text,
  idempotency_key  text not null,
  error            text,
  seal             bytea,
  request          jsonb not null,
  reply            jsonb,
  metadata         jsonb,
  facts            jsonb,
  earlier_seals    bytea[],
  constraint interactions_pkey PRIMARY KEY (id),
  constraint dispatching_has_worker CHECK (status <> 'dispatching'::text OR worker_id IS NOT NULL),
  constraint only_completed_has_reply CHECK ((status = 'completed'::text) = (reply IS NOT NULL)),
  constraint only_ended_has_end CHECK ((status = ANY (ARRAY['completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint status_known CHECK (status = ANY (ARRAY['queued'::text, 'waiting'::text, 'dispatching'::text, 'dispatched'::text, 'completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX interactions_assignee ON stepwell.interactions USING btree (tenant, assignee, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (assignee IS NOT NULL));
CREATE UNIQUE INDEX interactions_correlation ON stepwell.interactions USING btree (tenant, correlation);
CREATE INDEX interactions_deadline ON stepwell.interactions USING btree (deadline, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (deadline IS NOT NULL));
CREATE INDEX interactions_dispatch ON stepwell.interactions USING btree (transport, next_at, unit_id, item)
  WHERE (status = 'waiting'::text);
CREATE INDEX interactions_dispatching ON stepwell.interactions USING btree (worker_id)
  WHERE (status = 'dispatching'::text);
CREATE INDEX interactions_group ON stepwell.interactions USING btree (tenant, group_name, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (group_name IS NOT NULL));
CREATE UNIQUE INDEX interactions_item ON stepwell.interactions USING btree (unit_id, item);
CREATE INDEX interactions_pending ON stepwell.interactions USING btree (tenant, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE (status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text]));
CREATE INDEX interactions_queued ON stepwell.interactions USING btree (unit_id, item)
  WHERE (status = 'queued'::text);

create table stepwell.limits (
  kind        text collate "C" not null,
  name        text collate "C" not null,
  n           integer not null,
  per         interval,
  burst       integer,
  declared    jsonb not null,
  version     integer default 1 not null,
  changed_at  timestamp with time zone default now() not null,
  changed_by  text,
  constraint limits_pkey PRIMARY KEY (kind, name),
  constraint kind_known CHECK (kind = ANY (ARRAY['concurrency'::text, 'rate'::text])),
  constraint numbers_make_sense CHECK (n >= 0 AND (kind = 'concurrency'::text OR n > 0 AND burst > 0) AND per > '00:00:00'::interval),
  constraint rate_has_bucket CHECK ((kind = 'rate'::text) = (per IS NOT NULL AND burst IS NOT NULL))
);

create table stepwell.machines (
  name        text collate "C" not null,
  version     integer not null,
  initial     text not null,
  queue       text not null,
  steps       text[] not null,
  active      boolean not null,
  updated_at  timestamp with time zone default now() not null,
  retention   interval default '1 day'::interval,
  limits      jsonb default '{}'::jsonb not null,
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

create table stepwell.queues (
  name        text collate "C" not null,
  paused_at   timestamp with time zone,
  paused_by   text,
  reason      text,
  changed_at  timestamp with time zone not null,
  fair_by     text collate "C",
  constraint queues_pkey PRIMARY KEY (name),
  constraint fair_by_known CHECK (fair_by = 'tenant'::text),
  constraint pause_has_time CHECK (paused_at IS NOT NULL OR paused_by IS NULL AND reason IS NULL)
);
CREATE INDEX queues_fair ON stepwell.queues USING btree (name)
  WHERE (fair_by IS NOT NULL);

create table stepwell.reply_types (
  id         text collate "C" not null,
  name       text not null,
  reference  jsonb not null,
  schema     jsonb,
  constraint reply_types_pkey PRIMARY KEY (id)
);

create table stepwell.retired_token_keys (
  key_id      text collate "C" not null,
  retired_at  timestamp with time zone default now() not null,
  constraint retired_token_keys_pkey PRIMARY KEY (key_id)
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

insert into stepwell.meta (version) values (14);
