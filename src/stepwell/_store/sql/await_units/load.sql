-- Read units with their interactions, for the steps that wait for them. Of a unit with continuations, only the
-- interactions that have ended it are read: there may be very many, and await_units/outputs.sql reads the results.
-- Index: the primary keys, interactions_item.
-- Locks: none.
-- Returns: one row per interaction, in item order, or one per unit without any.
select u.id as unit_id, u.status as unit_status, u."window" is null as is_one, u.on_timeout, u.step,
       t.reference::text as reference, q.id::text as id, q.item,
       case when u.status <> 'waiting' and q.finished_at is null then 'cancelled' else q.status end as status,
       q.reply::text as reply, q.actor,
       coalesce(q.finished_at, u.finished_at) as finished_at, q.error, u.item_step is not null as is_streamed
from {schema}.await_units u
join {schema}.reply_types t on t.id = any (array[u.reply_type])
left join {schema}.interactions q
  on q.unit_id = any (array[u.id])
 and (u.item_step is null or u.status in ('timed_out', 'failed') and q.status || '' in ('timed_out', 'failed'))
where u.id = any ($1::bigint[])
order by u.id, q.item
