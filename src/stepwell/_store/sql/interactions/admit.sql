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
order by j.position
