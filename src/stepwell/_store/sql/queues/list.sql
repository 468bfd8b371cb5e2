-- List the queues that anybody knows of: a worker, a machine, an operator, or an instance that may run; with counts.
-- Keeps: no count reads more than $1 rows, so that it costs the same whatever waits.
-- Index: instances_claim, one step per queue; it and instances_fair, up to $1 rows each; instances_executing, which
--   holds no more than all workers have slots; up to $1 rows of each of the indexes of what is held.
-- Locks: none.
-- Returns: the queues by name; what may run (up to $1), is executing, and is held (null: more than could be counted).
with recursive waiting(queue) as (
  (select i.queue
   from stepwell.instances i
   where i.status = 'runnable' and i.hold is null and i.share is null
   order by i.queue
   limit 1)
  union all
  select (select i.queue
          from stepwell.instances i
          where i.status = 'runnable' and i.hold is null and i.share is null and i.queue > w.queue
          order by i.queue
          limit 1)
  from waiting w
  where w.queue is not null
), held as materialized (
  (select i.queue, i.hold from stepwell.instances i where i.status = 'runnable' and i.hold = 'due' limit $1)
  union all
  (select i.queue, i.hold from stepwell.instances i where i.status = 'runnable' and i.hold = 'key' limit $1)
  union all
  (select i.queue, 'code' from stepwell.instances i
   where i.status = 'runnable' and i.hold in ('version', 'unfit') limit $1)
  union all
  (select i.queue, i.hold from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null limit $1)
  union all
  (select i.queue, i.hold from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null limit $1)
  union all
  (select i.queue, 'undeclared' from stepwell.instances i
   where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null limit $1)
), executing as materialized (
  select i.queue, count(*) as number
  from stepwell.instances i
  where i.status = 'executing'
  group by i.queue
), known as (
  select w.queue as name from waiting w where w.queue is not null
  union
  select h.queue from held h
  union
  select e.queue from executing e
  union
  select q.name from stepwell.queues q
  union
  select m.queue from stepwell.machines m where m.active
  union
  select served.name
  from stepwell.workers w cross join lateral jsonb_object_keys(w.queues) as served(name)
  where w.lease_until > pg_catalog.now()
), counted as (
  select k.name,
         (select count(*)
          from ((select from stepwell.instances i
                 where i.queue = k.name and i.status = 'runnable' and i.hold is null and i.share is null
                 limit $1)
                union all
                (select from stepwell.instances i
                 where i.queue = k.name and i.status = 'runnable' and i.hold is null and i.share is not null
                 limit $1)
                limit $1) r)::integer as runnable,
         coalesce((select e.number from executing e where e.queue = k.name), 0)::integer as executing,
         case when not exists (select from held h group by h.hold having count(*) >= $1)
              then (select count(*) from held h where h.queue = k.name)::integer end as held
  from known k
)
select c.name, q.fair_by, q.paused_at, q.paused_by, q.reason, c.runnable, c.executing, c.held
from counted c left join stepwell.queues q on q.name = c.name
order by c.name
