-- Admit the most urgent rows behind each limit, up to its free slots and at most $2 (null: any number). Run under
-- limits/lock.sql, after the statement that freed the slots.
-- Keeps: nothing is admitted while the limit is full or not declared. Rows of queues that are claimed from come first:
--   the backlog of a paused or unserved queue blocks no other. With $3 the caller has freed no slot: rows admitted
--   before may not be claimed yet, some not for long, for want of a worker with free slots. Then each queue gets fewer
--   by as many as are already admitted among its first rows, and the first row of every served queue is admitted, so
--   that no queue waits for the workers of another.
-- Index: instances_slot; instances_limit_queue, one step per queue, and then only the rows to admit; the primary key;
--   with $3 up to 100 rows per queue of instances_claim and of instances_fair.
-- Locks: the rows, skip locked; what another transaction holds is left to concurrency_keys/find_idle.sql.
-- Returns: the queue of each admitted row.
with recursive room as materialized (
  -- Each limit with its free slots.
  select g.key, least(g.most, l.n - (select count(*)
                                     from {schema}.instances e
                                     where e.concurrency_limit = g.key and e.status = 'executing'
                                       and e.slot is not null))::integer as number
  from unnest($1::text[], $2::integer[]) as g(key, most)
  join {schema}.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), queues(key, number, queue) as (
  -- Before the first queue, then the queues in which rows wait, one index step each.
  select r.key, r.number, '' collate "C"
  from room r
  where r.number > 0
  union all
  select q.key, q.number, (select i.queue
                           from {schema}.instances i
                           where i.concurrency_limit = q.key and i.status = 'runnable' and i.hold = 'limit'
                             and i.hold_reason is null and i.queue > q.queue
                           order by i.queue
                           limit 1)
  from queues q
  where q.queue is not null
), offered as materialized (
  -- The first rows of each queue, served queues first.
  select n.id, q.number,
         row_number() over (partition by q.key order by s.is_served desc, n.priority, n.due_at, n.id) as place,
         s.is_served and row_number() over (partition by q.key, q.queue order by n.priority, n.due_at, n.id) = 1
           as is_first
  from queues q
  cross join lateral (
    select exists (select from {schema}.workers w where w.lease_until > pg_catalog.now() and w.queues ? q.queue)
           and not exists (select from {schema}.queues p where p.name = q.queue and p.paused_at is not null)
             as is_served,
           case when $3::boolean
                then (select count(*)
                      from ((select i.concurrency_limit
                             from {schema}.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null and i.share is null
                             order by i.priority, i.due_at, i.id
                             limit 100)
                            union all
                            (select i.concurrency_limit
                             from {schema}.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null
                               and i.share is not null
                             order by i.priority, i.share, i.due_at, i.id
                             limit 100)) f
                      where f.concurrency_limit = q.key)
                else 0 end as let_go
    offset 0
  ) s
  cross join lateral (
    select i.id, i.priority, i.due_at
    from {schema}.instances i
    where i.concurrency_limit = q.key and i.queue = q.queue and i.status = 'runnable' and i.hold = 'limit'
      and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit greatest(q.number - s.let_go, 0)
  ) n
  where q.queue <> ''
), following as materialized (
  select i.id
  from offered o join {schema}.instances i on i.id = any (array[o.id])
  where (o.place <= o.number or $3 and o.is_first) and i.hold = 'limit' and i.status || '' = 'runnable'
  for no key update of i skip locked
)
update {schema}.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue
