-- Answers that go on by themselves: an instance each, joined at the unit (docs/decisions/0016).

-- The step for single items; null: the instance itself goes on, with all answers.
alter table stepwell.await_units add column item_step text collate "C";
-- Answers that are on their way; the unit is complete when all of them have come to their end.
alter table stepwell.await_units add column continuing integer not null default 0;
alter table stepwell.await_units add constraint continuing_not_negative check (continuing >= 0);
-- The unit of whose items it is one.
alter table stepwell.instances add column continues_unit_id bigint;
-- What of a unit is still on its way: ended with it, and looked for where nothing seems to be.
create index instances_continuing on stepwell.instances (continues_unit_id)
  where continues_unit_id is not null and status not in ('done', 'failed', 'cancelled');
-- Of a list, asked or answered, as its question says; 0: any number.
alter table stepwell.await_units add column max_items integer not null default 10000;
-- What was sent, where a projector has made the reply of it.
alter table stepwell.interactions add column facts jsonb;

-- One answer judged, and what may go on by it let go, in one round trip; nothing if somebody holds its instance. Each
-- statement has a snapshot of its own: what is judged was committed before the lock was there.
create function stepwell._answer_one(instance_id bigint, answer json)
returns table (verdict text, problem text, status text, queues text[], transports text[], next_deadline float8)
language plpgsql as $$
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
$$;

-- The engine's own statements that have changed, for the SQL doors: see 0003_statements.
drop function stepwell._operators_find_subtree;
drop function stepwell._operators_cancel;
drop function stepwell._interactions_find;
drop function stepwell._interactions_admit;
drop function stepwell._units_settle;
drop function stepwell._units_close;
create or replace function stepwell._operators_find_subtree(bigint, boolean)
returns table ("id" bigint, "concurrency_key" text, "parent_id" bigint)
language plpgsql as $$
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
$$;
revoke execute on function stepwell._operators_find_subtree from public;


create or replace function stepwell._operators_cancel(bigint[], text, text)
returns table ("id" bigint, "fence" bigint, "watched" boolean, "was_executing" boolean, "joins" bigint, "parent_round" integer, "continues" bigint, "concurrency_limit" text)
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
$$;
revoke execute on function stepwell._operators_cancel from public;


create or replace function stepwell._interactions_find(uuid[], uuid[], text[])
returns table ("position" integer, "id" text, "unit_id" bigint, "instance_id" bigint, "machine" text, "version" integer, "step" text, "reference" text, "request" text, "asked_at" timestamptz)
language plpgsql as $$
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
$$;
revoke execute on function stepwell._interactions_find from public;


create or replace function stepwell._interactions_admit(json)
returns table ("position" integer, "verdict" text, "problem" text, "status" text, "unit_id" bigint, "was_out" boolean, "continues_in" text)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Judge answers to questions, and take those in that may be. They come as one JSON array; no question twice in it.
-- Run in a transaction that has locked their instances before this statement: nobody else ends these questions now.
-- Keeps: the order of the checks (token, answered before, closed, too late, type, which includes that a list has no
--   more than `max_items`: a step is handed all of them at once); whatever is refused changes nothing.
--   `facts` is what was sent, if a projector has made the reply of it: a repeated answer is known by that.
--   `token` has the facts of a token whose signature was verified, `seal` the hash of one that nobody could verify.
--   An answer to a unit with an `item_step` goes on by itself: an instance of the machine that asked, at that step,
--   with the item's number and the answer as its state; it is counted at the unit, and is nobody's child.
-- Index: the primary keys (|| '': no other); queues_fair, once. Locks: the questions that are answered.
-- Returns: per answer its place, the verdict, what is wrong with the reply, the status it found, whether the question
--   was out, and the queue in which the answer goes on by itself.
with given as materialized (
  select g.position, g.id, coalesce(g.reply, 'null') as reply, g.facts, g.actor, g.token, g.seal, g.is_checked,
         g.problem
  from json_to_recordset($1::json) as g(
         position integer, id uuid, reply jsonb, facts jsonb, actor text, token jsonb, seal text, is_checked boolean,
         problem text)
), judged as materialized (
  select g.position, g.id, g.reply, g.facts, g.actor, q.unit_id, q.status, u.item_step,
         case
           when g.token is not null then
             case when g.token = jsonb_build_array(q.tenant, q.id::text, q.correlation::text, q.instance_id, u.step,
                                                   floor(extract(epoch from q.deadline) * 1000)::bigint)
                  then null else 'token' end
           when g.seal is not null then case when g.seal = encode(q.seal, 'hex') then null else 'token' end
           when u.requires_token then 'token'
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
$$;
revoke execute on function stepwell._interactions_admit from public;


create or replace function stepwell._units_settle(bigint[], integer[], integer[], text[], boolean[], integer[], integer[])
returns table ("queues" text[], "transports" text[], "next_deadline" float8, "dropped" bigint[])
language plpgsql as $$
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
$$;
revoke execute on function stepwell._units_close from public;


create or replace function stepwell._units_drop_items(bigint[])
returns table ("id" bigint, "revoked" text, "settled" text)
language plpgsql as $$
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
$$;
revoke execute on function stepwell._units_drop_items from public;

-- As before, and an answer may go on by itself.
create or replace function stepwell.complete(
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
  select a.verdict, a.problem, a.status, a.unit_id, a.was_out, a.continues_in into judged
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
$$;

-- As before, and the end of such an answer is counted: it fails what asked.
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
$$;
