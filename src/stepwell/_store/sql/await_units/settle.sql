-- Count resolved interactions at their units; end units that have nothing open or have timed out; send the next items
-- of a window; wake instances. $2: interactions that ended; $3: those of them that were out; $4: what ends a unit early
-- ('timed_out', 'failed'), if it has one interaction or is to fail; $5: its last item was appended; $6, $7:
-- continuations started and ended.
-- Keeps: the first end of a unit stands. A unit that ended early leaves nothing open (clean_up.sql closes units with
--   more than 1,000 interactions, or beyond 5,000 in all; no statement takes those for open). An instance wakes once,
--   only from its own unit, also if the unit ended before it parked. Continuations are counted while the unit waits;
--   one that fails ends the unit, and so does an interaction that cannot be sent, unless the unit continues without
--   missing replies. Run after another statement has locked the instances.
-- Index: the primary keys, interactions_queued, interactions_item. See docs/internals/sql-plans.md.
-- Locks: units, then interactions, then the instances (locked already).
-- Returns: one row: the queues of woken instances, the transports with something to send, the seconds to the first
--   deadline of what is sent, and units that ended early with continuations (await_units/drop_items.sql).
with given as materialized (
  -- The new counts and status of each unit.
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
  join {schema}.await_units u on u.id = any (array[g.unit_id])
  where u.status || '' = 'waiting' or g.is_filled
  order by g.unit_id
), counted as (
  update {schema}.await_units u
  set resolved = u.resolved + g.resolved,
      in_flight = g.out + case when g.status = 'waiting' then coalesce(g.room, 0) else 0 end,
      is_filled = u.is_filled or g.is_filled,
      continuing = case when g.status = 'waiting' then g.continuing else 0 end,
      status = g.status,
      finished_at = case when g.status <> 'waiting' then coalesce(u.finished_at, {schema}.instant()) end
  from given g
  where u.id = any (array[g.unit_id]) and (u.status || '' = 'waiting' or g.is_filled)
  returning u.id, u.instance_id, u.status, u.is_sent, u.timeout, u.transport, u.item_step, u.opened,
            case when g.status = 'waiting' then g.room end as room
), closed as materialized (
  -- Units that ended early.
  select c.id, c.item_step, c.opened from counted c where c.status in ('timed_out', 'failed')
), {ctes sized, left_open of await_units/close}
), dropped as (
  update {schema}.interactions q
  set status = 'cancelled', finished_at = {schema}.instant()
  where q.unit_id = any (array(select s.id from sized s where s.is_small))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
), next_ones as materialized (
  -- Queued interactions for which the window has room.
  select n.id, c.is_sent, c.timeout
  from counted c
  cross join lateral (
    select q.id
    from {schema}.interactions q
    where q.unit_id = c.id and q.status = 'queued'
    order by q.item
    limit c.room
  ) n
  where c.room > 0
), released as (
  update {schema}.interactions q
  set status = case when n.is_sent then 'waiting' else 'dispatched' end, deadline = {schema}.instant() + n.timeout,
      next_at = {schema}.instant()
  from next_ones n
  where q.id = any (array[n.id])
  returning case when n.is_sent then q.transport end as transport, n.timeout
), woken as (
  update {schema}.instances i
  set status = 'runnable', due_at = {schema}.instant(), updated_at = {schema}.instant()
  from counted c
  where i.id = any (array[c.instance_id]) and i.status || '' = 'awaiting_external' and i.await_unit_id = c.id
    and c.status <> 'waiting'
  returning i.queue
)
select array(select w.queue from woken w) as queues,
       array(select distinct r.transport from released r where r.transport is not null) as transports,
       (select extract(epoch from min(r.timeout))::float8 from released r) as next_deadline,
       array(select s.id from sized s where s.is_small and s.item_step is not null) as dropped
