-- Read interactions of a tenant by their ids, in no order.
-- Index: the primary keys.
-- Locks: none.
-- Returns: one row each.
select q.id::text as id, q.tenant, q.instance_id, u.machine, u.version, u.step, q.unit_id,
       case when u."window" is not null then q.item end as index, q.correlation::text as correlation_id, q.transport,
       case when u.status <> 'waiting' and q.finished_at is null then 'cancelled' else q.status end as status,
       q.request::text as request, q.reply::text as reply, t.name as reply_type,
       t.schema::text as reply_schema, q.assignee, q.group_name as "group", q.actor, u.requires_token,
       q.idempotency_key, q.attempts, q.error, q.metadata::text as metadata, q.deadline,
       coalesce(q.deadline <= {schema}.now(), false) as is_overdue, q.created_at, q.dispatched_at,
       coalesce(q.finished_at, u.finished_at) as finished_at,
       t.reference::text as reference
from {schema}.interactions q
join {schema}.await_units u on u.id = any (array[q.unit_id])
join {schema}.reply_types t on t.id = any (array[u.reply_type])
where q.id = any ($1::uuid[]) and q.tenant || '' = $2
