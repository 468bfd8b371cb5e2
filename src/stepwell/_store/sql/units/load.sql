-- Read units with their questions, for the steps that go on by them. Of one whose answers went on by themselves, only
-- those are read that have ended it: there may be very many, and outputs.sql gives what they have come to.
-- Index: the primary keys, interactions_item. Locks: none. Returns: one row per question, in item order, or one per
--   unit without any.
select u.id as unit_id, u.status as unit_status, u."window" is null as is_one, u.on_timeout, u.step,
       t.reference::text as reference, q.id::text as id, q.item, q.status,
       q.reply::text as reply, q.actor, q.finished_at, q.error, u.item_step is not null as is_streamed
from stepwell.await_units u
join stepwell.reply_types t on t.id = any (array[u.reply_type])
left join stepwell.interactions q
  on q.unit_id = any (array[u.id])
 and (u.item_step is null or u.status in ('timed_out', 'failed') and q.status || '' in ('timed_out', 'failed'))
where u.id = any ($1::bigint[])
order by u.id, q.item
