-- List instances, newest first, below the cursor $1 (null: from the newest). A null filter excludes nothing.
-- Index: the primary key, backwards from the cursor; the wide rows only for the page, by their primary key (without the
--   lateral limit they would be merged from the newest to the cursor). Planned for its arguments, since no plan is good
--   for all filters.
-- Locks: none.
-- Returns: the page, each with why its queue is paused, if it is, and with its open unit, if it waits for replies.
with page as materialized (
  select i.id, i.tenant, i.key, i.machine, i.version, i.step, i.status, i.hold, i.hold_reason, i.attempt, i.crashes,
         i.fence, i.queue, i.priority, i.concurrency_key, i.worker_id, i.due_at, i.deadline, i.awaits, i.parent_id,
         i.children_pending, i.created_at, i.updated_at, i.finished_at,
         i.concurrency_limit, i.rate_limit, i.weight, i.await_unit_id,
         case when i.continues_unit_id is not null then i.child_index end as item
  from {schema}.instances i
  where i.id < coalesce($1::bigint, 9223372036854775807)
    and ($2::text[] is null or i.status = any ($2))
    and ($3::text is null or i.machine = $3)
    and ($4::integer is null or i.version = $4)
    and ($5::text is null or i.step = $5)
    and ($6::text is null or i.queue = $6)
    and ($7::text is null or i.tenant = $7)
    and ($8::text is null or i.key = $8 and i.key_scope is not null)
    and ($9::timestamptz is null or i.created_at >= $9)
    and ($10::timestamptz is null or i.created_at < $10)
  order by i.id desc
  limit $11
), paused as materialized (
  select q.name, coalesce(q.reason, '') as reason
  from {schema}.queues q
  where q.paused_at is not null
)
select p.*, d.state, d.result, d.error, d.operated,
       (select q.reason from paused q where q.name = p.queue) as queue_pause,
       u.transport as asked_over, coalesce(u.opened - u.resolved, 0) as answers_pending,
       coalesce(u.continuing, 0) as items_pending
from page p
cross join lateral (
  select d.state::text as state, d.result::text as result, d.error::text as error, d.operated::text as operated
  from {schema}.instance_data d
  where d.id = p.id
  limit 1
) d
left join lateral (
  select u.transport, u.opened, u.resolved, u.continuing
  from {schema}.await_units u
  where u.id = p.await_unit_id and p.status = 'awaiting_external'
  limit 1
) u on true
order by p.id desc
