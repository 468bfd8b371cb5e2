-- Complete simple interactions: out and in time, without a token, at a unit that has none to send next and no
-- continuations, while the instance is parked there or still asks. All others are left for interactions/complete.sql.
-- Keeps: interaction, unit and instance change together or not at all: `held` locks all three before one is written,
--   and judges their newest versions. The rest is what await_units/settle.sql does at such a unit: it ends with its
--   last reply, and its instance wakes; one that still asks continues when it has appended everything. Worker and slot
--   are cleared too: a row that parked since the snapshot had them then, and the constraints are checked on that
--   version first. If one of the three is locked, the completion takes the full path.
-- Index: the primary keys. See docs/internals/sql-plans.md.
-- Locks: the instances, units and interactions, skip locked.
-- Returns: one row: the positions of the accepted completions, and the queues of woken instances.
with given as materialized (
  select g.id, g.reply::jsonb as reply, g.actor, (g.place - 1)::integer as place
  from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as g(id, reply, actor, place)
), held as materialized (
  select g.place, g.reply, g.actor, q.id as interaction_id, u.id as unit_id
  from given g
  join {schema}.interactions q on q.id = any (array[g.id])
  join {schema}.await_units u on u.id = any (array[q.unit_id])
  join {schema}.instances i on i.id = any (array[q.instance_id])
  where q.status || '' in ('waiting', 'dispatching', 'dispatched')
    and (q.deadline is null or q.deadline > {schema}.now())
    and u.status || '' = 'waiting' and u.in_flight = u.opened - u.resolved and u.item_step is null
    and not u.requires_token
    and case when jsonb_typeof(g.reply) = 'array'
             then u.max_items = 0 or jsonb_array_length(g.reply) <= u.max_items else true end
    and (i.status || '' = 'awaiting_external' and i.await_unit_id = u.id and u.is_filled
         or i.status || '' = 'executing' and i.filling_unit_id = u.id and not u.is_filled) is true
  for no key update of i, u, q skip locked
), completed as (
  update {schema}.interactions q
  set status = 'completed', reply = h.reply, actor = h.actor, finished_at = {schema}.now(), error = null
  from held h
  where q.id = any (array[h.interaction_id])
  returning h.place, h.unit_id
), counted as (
  select c.unit_id, count(*)::integer as number from completed c group by c.unit_id
), ended as (
  update {schema}.await_units u
  set resolved = u.resolved + c.number,
      in_flight = u.in_flight - c.number,
      status = case when u.is_filled and u.resolved + c.number = u.opened then 'completed' else u.status end,
      finished_at = case when u.is_filled and u.resolved + c.number = u.opened then {schema}.now() end
  from counted c
  where u.id = any (array[c.unit_id])
  returning u.instance_id, u.status
), woken as (
  update {schema}.instances i
  set status = 'runnable', due_at = {schema}.now(), updated_at = {schema}.now(), worker_id = null, claimed_at = null,
      slot = null
  from ended e
  where e.status = 'completed' and i.id = any (array[e.instance_id])
  returning i.queue
)
select array(select c.place from completed c) as places, array(select w.queue from woken w) as queues
