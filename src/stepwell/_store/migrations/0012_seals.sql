-- Tokens in SQL outlive the rotation of their keys, and a key can be withdrawn at every door at once.

-- SHA-256 of tokens that were handed out before the one in `seal`: one per key, the newest first.
alter table stepwell.interactions add column earlier_seals bytea[];

-- Keys whose tokens are refused, whoever has them in a ring.
create table stepwell.retired_token_keys (
  key_id      text collate "C" primary key,
  retired_at  timestamptz not null default pg_catalog.now()
);

-- Who answers reads it: a worker's role of its own goes on, before its grants are run again.
do $$
declare
  reader text;
begin
  for reader in
    select distinct case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
    from pg_class c, aclexplode(c.relacl) a
    where c.oid = 'stepwell.interactions'::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner
  loop
    execute 'grant select on stepwell.retired_token_keys to ' || reader;
  end loop;
end
$$;


-- Refuse what is no id of a key: nothing would ever be signed with it.
create function stepwell._check_key_id(key_id text)
returns void
language plpgsql as $$
begin
  if key_id is null or key_id !~ '^[A-Za-z0-9_-]{1,32}$' then
    perform stepwell._refuse(
      'SW001', 'key_id', 'is not of 1 to 32 letters, digits, ''_'' or ''-''; name the key as in token_keys');
  end if;
end
$$;


-- Refuse all tokens of a key from now on, in SQL, in Python and over HTTP. False: it is retired already.
-- It is no door for everybody: the schema's owner calls it.
create function stepwell.retire_token_key(key_id text)
returns boolean
language plpgsql as $$
begin
  perform stepwell._check_key_id(retire_token_key.key_id);
  insert into stepwell.retired_token_keys values (retire_token_key.key_id) on conflict do nothing;
  return found;
end
$$;


-- Take tokens of a retired key again, where it is in the ring. False: it is not retired.
create function stepwell.reinstate_token_key(key_id text)
returns boolean
language plpgsql as $$
begin
  perform stepwell._check_key_id(reinstate_token_key.key_id);
  delete from stepwell.retired_token_keys r where r.key_id = reinstate_token_key.key_id;
  return found;
end
$$;


-- The engine's own statement that has changed, for the SQL doors: see 0003_statements.
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
$$;


-- As before, and a token counts if it fits the question and is one of those that were handed out.
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
$$;
