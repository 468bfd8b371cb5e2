-- Answer plain questions: out and in time, without a token, at a unit that has none to let out next, and whose answers
-- do not go on by themselves; its instance is parked there, or still asks.
-- Whatever is anything else is left as it is, for admit.sql to judge.
-- Keeps: question, unit and instance change all three, or none: `held` locks them before one is written, and judges the
--   newest version of each, whatever was committed since the snapshot. The rest is what settle.sql does at such a unit:
--   it ends with its last answer, and its instance goes on; one that still asks goes on when it has asked everything.
--   (One that has parked since the snapshot has no worker and no slot. It had them then, and Postgres looks whether
--   such a row could be runnable before it finds the newer one.)
--   Nobody is waited for: if one of the three is held, also by a dispatcher for a moment, the answer goes the long way.
-- Index: the primary keys (|| '': no other; is true: no way from an instance to its unit).
-- Locks: the instances, units and questions, skip locked.
-- Returns: one row: the places in the arrays of the answers that were taken, and the queues of what goes on.
with given as materialized (
  select g.id, g.reply::jsonb as reply, g.actor, (g.place - 1)::integer as place
  from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as g(id, reply, actor, place)
), held as materialized (
  select g.place, g.reply, g.actor, q.id as question_id, u.id as unit_id
  from given g
  join stepwell.interactions q on q.id = any (array[g.id])
  join stepwell.await_units u on u.id = any (array[q.unit_id])
  join stepwell.instances i on i.id = any (array[q.instance_id])
  where q.status || '' in ('waiting', 'dispatching', 'dispatched')
    and (q.deadline is null or q.deadline > stepwell.now())
    and u.status || '' = 'waiting' and u.in_flight = u.opened - u.resolved and u.item_step is null
    and not u.requires_token
    and case when jsonb_typeof(g.reply) = 'array'
             then u.max_items = 0 or jsonb_array_length(g.reply) <= u.max_items else true end
    and (i.status || '' = 'awaiting_external' and i.await_unit_id = u.id and u.is_filled
         or i.status || '' = 'executing' and i.filling_unit_id = u.id and not u.is_filled) is true
  for no key update of i, u, q skip locked
), answered as (
  update stepwell.interactions q
  set status = 'completed', reply = h.reply, actor = h.actor, finished_at = stepwell.now(), error = null
  from held h
  where q.id = any (array[h.question_id])
  returning h.place, h.unit_id
), counted as (
  select a.unit_id, count(*)::integer as number from answered a group by a.unit_id
), ended as (
  update stepwell.await_units u
  set resolved = u.resolved + c.number,
      in_flight = u.in_flight - c.number,
      status = case when u.is_filled and u.resolved + c.number = u.opened then 'completed' else u.status end,
      finished_at = case when u.is_filled and u.resolved + c.number = u.opened then stepwell.now() end
  from counted c
  where u.id = any (array[c.unit_id])
  returning u.instance_id, u.status
), woken as (
  update stepwell.instances i
  set status = 'runnable', due_at = stepwell.now(), updated_at = stepwell.now(), worker_id = null, claimed_at = null,
      slot = null
  from ended e
  where e.status = 'completed' and i.id = any (array[e.instance_id])
  returning i.queue
)
select array(select a.place from answered a) as places, array(select w.queue from woken w) as queues
