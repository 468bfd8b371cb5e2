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
             where c.item_step is not null and c.status in ('timed_out', 'failed')) as dropped
