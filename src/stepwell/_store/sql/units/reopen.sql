-- Ask again what a retried instance was never answered: it ended at a unit that was closed with it, whose time was to
-- fail it, or of whose items one has failed. (What its step has seen end, as a timeout that wakes, is seen again: the
-- step is run again.) Answers that were to go on by themselves, and did not come to their end, go on again.
-- Run in the transaction of operators/retry.sql, and before settle.sql. Keeps: what was answered stays answered, and is
--   not asked again; what is done is not done again; a question's time begins anew, and the token it had says another
--   deadline, if any.
-- Index: the primary keys, interactions_item, instances_parent. Locks: the unit, its interactions, the instance (ours
--   already), and what goes on again.
-- Returns: the unit, the transports with something to send, and the queues with something to go on; nothing if there is
--   nothing to ask again.
with again as (
  update stepwell.await_units u
  set status = 'waiting', finished_at = null, resolved = n.answered,
      in_flight = least(u.opened - n.answered, u."window"), continuing = n.going
  from (select i.await_unit_id as id,
               (select count(*) from stepwell.interactions q
                where q.unit_id = i.await_unit_id and q.status = 'completed')::integer as answered,
               (select count(*) from stepwell.instances c
                where c.parent_id = i.id and c.parent_round is null and c.continues_unit_id = i.await_unit_id
                  and c.status || '' <> 'done')::integer as going
        from stepwell.instances i
        where i.id = $1) n
  where u.id = any (array[n.id]) and u.is_filled
    and (u.status = 'cancelled' or u.status = 'timed_out' and u.on_timeout = 'fail'
         or u.status = 'failed' and u.item_step is not null)
  returning u.id, u.instance_id, u.timeout, u.is_sent, u.in_flight
), asked as (
  update stepwell.interactions q
  set status = case when o.place > a.in_flight then 'queued' when a.is_sent then 'waiting' else 'dispatched' end,
      finished_at = null, error = null, next_at = stepwell.now(), dispatched_at = null,
      deadline = case when o.place <= a.in_flight then stepwell.now() + a.timeout end
  from again a
  cross join lateral (
    select u.id, row_number() over (order by u.item) as place
    from stepwell.interactions u
    where u.unit_id = a.id and u.status <> 'completed'
  ) o
  where q.id = any (array[o.id])
  returning q.transport, a.is_sent
), going as (
  update stepwell.instances c
  set status = 'runnable', attempt = 0, crashes = 0, fence = c.fence + 1, due_at = stepwell.now(),
      updated_at = stepwell.now(), finished_at = null, joined = false
  from again a
  cross join lateral (
    select k.id
    from stepwell.instances k
    where k.parent_id = a.instance_id and k.parent_round is null and k.continues_unit_id = a.id
      and k.status || '' in ('failed', 'cancelled')
    offset 0
  ) k
  where c.id = any (array[k.id])
  returning c.id, c.queue
), forgiven as (
  update stepwell.instance_data d
  set error = null
  from going g
  where d.id = any (array[g.id])
), parked as (
  update stepwell.instances i
  set status = 'awaiting_external'
  from again a
  where i.id = any (array[a.instance_id])
)
select a.id as unit_id, array(select distinct k.transport from asked k where k.is_sent) as transports,
       array(select distinct g.queue from going g) as queues
from again a
