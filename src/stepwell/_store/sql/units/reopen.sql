-- Ask again what a retried instance was never answered: it ended at a unit that was closed with it, or whose time was
-- to fail it. (What its step has seen end, as a timeout that wakes, is seen again: the step is run again.)
-- Run in the transaction of operators/retry.sql. Keeps: what was answered stays answered, and is not asked again; a
--   question's time begins anew, and the token it had is one of another deadline.
-- Index: the primary keys, interactions_item. Locks: the unit, its interactions, the instance (ours already).
-- Returns: the transports with something to send; nothing if there is nothing to ask again.
with again as (
  update stepwell.await_units u
  set status = 'waiting', finished_at = null, resolved = n.answered,
      in_flight = least(u.opened - n.answered, u."window")
  from (select i.await_unit_id as id,
               (select count(*) from stepwell.interactions q
                where q.unit_id = i.await_unit_id and q.status = 'completed')::integer as answered
        from stepwell.instances i
        where i.id = $1) n
  where u.id = any (array[n.id]) and u.is_filled
    and (u.status = 'cancelled' or u.status = 'timed_out' and u.on_timeout = 'fail')
  returning u.id, u.instance_id, u.timeout, u.is_sent, u.in_flight
), asked as (
  update stepwell.interactions q
  set status = case when o.place > a.in_flight then 'queued' when a.is_sent then 'waiting' else 'dispatched' end,
      finished_at = null, error = null, seal = null, next_at = stepwell.now(), dispatched_at = null,
      deadline = case when o.place <= a.in_flight then stepwell.now() + a.timeout end
  from again a
  cross join lateral (
    select u.id, row_number() over (order by u.item) as place
    from stepwell.interactions u
    where u.unit_id = a.id and u.status <> 'completed'
  ) o
  where q.id = any (array[o.id])
  returning q.transport, a.is_sent
), parked as (
  update stepwell.instances i
  set status = 'awaiting_external'
  from again a
  where i.id = any (array[a.instance_id])
)
select distinct k.transport, k.is_sent from asked k
