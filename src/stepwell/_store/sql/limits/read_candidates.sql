-- Read rows that need limits, and the state of those limits. Run under limits/lock_rows.sql, with a later snapshot.
-- Keeps: only rows that are still runnable and not on hold. An executing row is its slot, so nothing has to be
--   credited, however a claim ends. A missing bucket is full. Time that seems to run backwards (a transaction began
--   earlier and waited) refills nothing.
-- Index: the primary key; instances_slot once per limit; instances_rate_queue once per limit and queue. See
--   docs/internals/sql-plans.md.
-- Locks: the rows, skip locked.
-- Returns: 'row': a row, what it needs, and whether its concurrency key is busy; 'limit': a concurrency limit and its
--   taken slots; 'rate': a rate limit and its tokens; 'head': the first row in the wait queue of a rate limit, for each
--   queue that is claimed from; 'idle': the same for other queues, which block no other. n is null if no code declares
--   the limit.
with recursive given as materialized (
  -- The rows that may still be admitted.
  select i.id, i.concurrency_limit, i.rate_limit, i.weight, i.priority, i.due_at,
         i.concurrency_key is not null
           and exists (select from {schema}.instances e
                       where e.concurrency_key = i.concurrency_key and e.status = 'executing'
                       offset 0) as is_busy
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
  for no key update of i skip locked
), gates as materialized (
  -- Each concurrency limit with its taken slots.
  select g.key, l.n,
         array(select e.slot
               from {schema}.instances e
               where e.concurrency_limit = g.key and e.status = 'executing' and e.slot is not null) as taken
  from (select distinct d.concurrency_limit as key from given d where d.concurrency_limit is not null) g
  left join {schema}.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), buckets as materialized (
  -- Each rate limit with its tokens as of now.
  select g.key, l.burst, l.n / extract(epoch from l.per)::float8 as per_second,
         least(l.burst, coalesce(b.tokens + greatest(extract(epoch from {schema}.now() - b.refilled_at)::float8, 0)
                                            * (l.n / extract(epoch from l.per)::float8), l.burst)) as tokens
  from (select distinct d.rate_limit as key from given d where d.rate_limit is not null) g
  left join {schema}.limits l on l.kind = 'rate' and l.name = any (array[split_part(g.key, ':', 1)])
  left join {schema}.buckets b on b.key = any (array[g.key])
), queues(key, burst, tokens, queue) as (
  -- Before the first queue, then the queues in which rows wait for each rate limit, one index step each.
  select b.key, b.burst, b.tokens, '' collate "C"
  from buckets b
  union all
  select q.key, q.burst, q.tokens, (select i.queue
                                    from {schema}.instances i
                                    where i.rate_limit = q.key and i.status = 'runnable' and i.hold = 'rate'
                                      and i.hold_reason is null and i.queue > q.queue
                                    order by i.queue
                                    limit 1)
  from queues q
  where q.queue is not null
), heads as materialized (
  -- The first waiting row of each such queue.
  select q.key, n.*, s.is_served
  from queues q
  cross join lateral (
    select q.queue = $2
           or exists (select from {schema}.workers w where w.lease_until > pg_catalog.now() and w.queues ? q.queue)
              and not exists (select from {schema}.queues p where p.name = q.queue and p.paused_at is not null)
             as is_served
    offset 0
  ) s
  cross join lateral (
    select i.id, i.priority, i.due_at, i.weight
    from {schema}.instances i
    where i.rate_limit = q.key and i.queue = q.queue and i.status = 'runnable' and i.hold = 'rate'
      and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit 1
  ) n
  where q.queue <> ''
)
select 'row' as what, d.id, d.priority, d.due_at, d.concurrency_limit, d.rate_limit, d.weight, d.is_busy,
       null::integer as n, null::integer[] as taken, null::float8 as per_second, null::float8 as tokens
from given d
union all
select 'limit', null, null, null, g.key, null, null, null, g.n, g.taken, null, null
from gates g
union all
select 'rate', null, null, null, null, b.key, null, null, b.burst, null, b.per_second, b.tokens
from buckets b
union all
select case when h.is_served then 'head' else 'idle' end, h.id, h.priority, h.due_at, null, h.key, h.weight, null,
       null, null, null, null
from heads h
