-- Answer plain questions: each the only one of its unit, out and in time, without a token, its instance parked there.
-- Whatever is anything else is left as it is, for admit.sql to judge.
-- Keeps: question, unit and instance change all three, or none: `held` locks them before one is written, and judges the
--   newest version of each, whatever was committed since the snapshot. The rest is what settle.sql does at such a unit.
--   Nobody is waited for: if one of the three is held, also by a dispatcher for a moment, the answer goes the long way.
-- Index: the primary keys (|| '': no other; is true: no way from an instance to its unit).
-- Locks: the instances, units and questions, skip locked.
-- Returns: one row: the places in the arrays of the answers that were taken, and the queues of what goes on.
with given as materialized (
  select g.id, g.reply::jsonb as reply, g.actor, (g.place - 1)::integer as place
  from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as g(id, reply, actor, place)
), held as materialized (
  select g.place, g.reply, g.actor, q.id as question_id, u.id as unit_id, i.id as instance_id
  from given g
  join stepwell.interactions q on q.id = any (array[g.id])
  join stepwell.await_units u on u.id = any (array[q.unit_id])
  join stepwell.instances i on i.id = any (array[q.instance_id])
  where q.status || '' in ('waiting', 'dispatching', 'dispatched')
    and (q.deadline is null or q.deadline > stepwell.now())
    and u.status || '' = 'waiting' and u."window" is null and not u.requires_token
    and case when jsonb_typeof(g.reply) = 'array'
             then u.max_items = 0 or jsonb_array_length(g.reply) <= u.max_items else true end
    and i.status || '' = 'awaiting_external' and (i.await_unit_id = u.id) is true
  for no key update of i, u, q skip locked
), answered as (
  update stepwell.interactions q
  set status = 'completed', reply = h.reply, actor = h.actor, finished_at = stepwell.now(), error = null
  from held h
  where q.id = any (array[h.question_id])
  returning h.place
), ended as (
  update stepwell.await_units u
  set resolved = u.resolved + 1, in_flight = u.in_flight - 1, status = 'completed', finished_at = stepwell.now()
  from held h
  where u.id = any (array[h.unit_id])
), woken as (
  update stepwell.instances i
  set status = 'runnable', due_at = stepwell.now(), updated_at = stepwell.now()
  from held h
  where i.id = any (array[h.instance_id])
  returning i.queue
)
select array(select a.place from answered a) as places, array(select w.queue from woken w) as queues
