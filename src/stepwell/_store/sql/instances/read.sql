-- Read instances whole, with why their queue is paused, if it is, and their open unit, if they wait for replies.
-- Index: the primary keys. See docs/internals/sql-plans.md.
-- Locks: none.
select i.id, i.tenant, i.key, i.machine, i.version, i.step, i.status, i.hold, i.hold_reason, i.attempt, i.crashes,
       i.fence, i.queue, i.priority, i.concurrency_key, i.worker_id, i.due_at, i.deadline, i.awaits, i.parent_id,
       i.children_pending, i.created_at, i.updated_at, i.finished_at,
       i.concurrency_limit, i.rate_limit, i.weight,
       case when i.continues_unit_id is not null then i.child_index end as item,
       d.state::text as state, d.result::text as result, d.error::text as error, d.operated::text as operated,
       (select coalesce(q.reason, '')
        from {schema}.queues q
        where q.name = i.queue and q.paused_at is not null) as queue_pause,
       u.transport as asked_over, coalesce(u.opened - u.resolved, 0) as answers_pending,
       coalesce(u.continuing, 0) as items_pending
from {schema}.instances i
join {schema}.instance_data d on d.id = any (array[i.id])
left join {schema}.await_units u on u.id = any (array[i.await_unit_id]) and i.status = 'awaiting_external'
where i.id = any ($1::bigint[])
