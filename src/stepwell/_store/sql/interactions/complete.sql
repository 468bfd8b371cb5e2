-- Judge completions, and accept those that are valid: one JSON array, no interaction twice. Run after another statement
-- has locked their instances, so that nothing else ends these interactions meanwhile.
-- Keeps: the order of the checks: token, completed before, closed, late, type (with `max_items` of a list: a step gets
--   all of them at once). A refused completion changes nothing. A reply is checked only if nothing before refuses it: a
--   caller without a token costs nothing. `facts` is what was sent, if a projector made the reply; it tells a repeated
--   completion. `token` must fit the interaction; its signature was verified, or `seal` is its hash, one of those
--   stored. With an `item_step`, a reply starts a continuation (with item and reply as its state), which is counted at
--   the unit and at no parent.
-- Index: the primary keys; queues_fair, once; the retired keys, once, and only for a token.
-- Locks: the completed interactions.
-- Returns: per completion its position, the verdict, what is wrong with the reply, the status it found, whether the
--   interaction was out, and the queue of its continuation.
with met as materialized (
  -- Each completion with its interaction, and the verdict of token and status (an open interaction of an ended unit
  -- counts as closed).
  select g.position, g.id, coalesce(g.reply, 'null') as reply, g.facts, g.actor, g.is_checked, g.problem, q.unit_id,
         u.item_step, u.max_items, t.reference, t.schema,
         case when u.status <> 'waiting' and q.finished_at is null then 'cancelled' else q.status end as status,
         case
           when g.token is null and g.seal is null then case when u.requires_token then 'token' end
           when g.token_key = any (array(select r.key_id from {schema}.retired_token_keys r)) then 'retired'
           when g.token = jsonb_build_array(q.tenant, q.id::text, q.correlation::text, q.instance_id, u.step,
                                            floor(extract(epoch from q.deadline) * 1000)::bigint)
             and (g.seal is null or decode(g.seal, 'hex') = any (array_append(q.earlier_seals, q.seal))) then null
           else 'token'
         end as refusal,
         case
           when q.status = 'completed' and coalesce(q.facts, q.reply) = coalesce(g.facts, g.reply, 'null')
             then 'duplicate'
           when q.status = 'completed' then 'conflict'
           when q.status in ('timed_out', 'failed', 'cancelled') or u.status <> 'waiting' then 'closed'
           when q.deadline <= {schema}.now() then 'late'
         end as past
  from json_to_recordset($1::json) as g(
         position integer, id uuid, reply jsonb, facts jsonb, actor text, token jsonb, token_key text, seal text,
         is_checked boolean, problem text)
  join {schema}.interactions q on q.id = any (array[g.id])
  join {schema}.await_units u on u.id = any (array[q.unit_id])
  join {schema}.reply_types t on t.id = any (array[u.reply_type])
), judged as materialized (
  -- The same with what is wrong with the reply.
  select m.position, m.id, m.reply, m.facts, m.actor, m.unit_id, m.item_step, m.status, m.refusal, m.past,
         case
           when coalesce(m.refusal, m.past) is not null then null
           when case when jsonb_typeof(m.reply) = 'array' then jsonb_array_length(m.reply) > nullif(m.max_items, 0) end
             then format('reply: has %s items, one reply may have %s', jsonb_array_length(m.reply), m.max_items)
           when m.is_checked then m.problem
           when m.reference ->> 0 = 'projected' then
             format('projector: %s is not in the process that completes: do so where its pipeline is',
                    m.reference ->> 3)
           else {schema}._reply_problem(m.schema, m.reply)
         end as problem
  from met m
), admitted as (
  update {schema}.interactions q
  set status = 'completed', reply = j.reply, facts = j.facts, actor = j.actor, finished_at = {schema}.now(),
      error = null
  from judged j
  where q.id = any (array[j.id]) and coalesce(j.refusal, j.past, j.problem) is null
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
  returning q.id, q.item, q.reply, q.unit_id, q.instance_id, j.item_step
), continuing as materialized (
  -- The continuations to start.
  select a.id as interaction_id, a.item, a.reply, a.unit_id, a.item_step, p.id as parent_id, p.tenant, p.machine,
         p.version, p.queue, p.priority, nextval('{schema}.instances_id_seq') as id
  from admitted a
  join {schema}.instances p on p.id = any (array[a.instance_id])
  where a.item_step is not null
), started as (
  insert into {schema}.instances
    (id, machine, version, step, queue, priority, due_at, tenant, parent_id, child_index, continues_unit_id, created_at,
     updated_at, share)
  overriding system value
  select c.id, c.machine, c.version, c.item_step, c.queue, c.priority, {schema}.now(), c.tenant, c.parent_id, c.item,
         c.unit_id, {schema}.now(), {schema}.now(),
         case when c.queue = any (array(select f.name from {schema}.queues f where f.fair_by is not null))
              then hashtextextended(c.tenant, 0) end
  from continuing c
), stored as (
  insert into {schema}.instance_data (id, state)
  select c.id, jsonb_build_object('item', c.item, 'value', c.reply)
  from continuing c
), queues as materialized (
  select jsonb_object_agg(c.interaction_id, c.queue) as by_interaction from continuing c
)
select j.position, coalesce(j.refusal, j.past, case when j.problem is null then 'admitted' else 'type' end) as verdict,
       j.problem, j.status, j.unit_id, j.status <> 'queued' as was_out,
       (select q.by_interaction from queues q) ->> j.id::text as continues_in
from judged j
order by j.position
