-- List all known queues: from a worker, a machine, an operator, or an instance that may run; with counts.
-- Keeps: no count reads more than $1 rows, so the cost does not depend on the backlog.
-- Index: instances_claim, one step per queue; it and instances_fair, up to $1 rows each; instances_executing, which
--   holds no more than all workers have slots; up to $1 rows of each index of rows on hold.
-- Locks: none.
-- Returns: the queues by name, with how many rows may run (up to $1), execute, and are on hold (null: too many to
--   count).
with recursive waiting(queue) as (
  -- The queues with runnable rows, one index step each.
  (select i.queue
   from {schema}.instances i
   where i.status = 'runnable' and i.hold is null and i.share is null
   order by i.queue
   limit 1)
  union all
  select (select i.queue
          from {schema}.instances i
          where i.status = 'runnable' and i.hold is null and i.share is null and i.queue > w.queue
          order by i.queue
          limit 1)
  from waiting w
  where w.queue is not null
), held as materialized (
  -- Up to $1 rows of each kind of hold.
  (select i.queue, i.hold from {schema}.instances i where i.status = 'runnable' and i.hold = 'due' limit $1)
  union all
  (select i.queue, i.hold from {schema}.instances i where i.status = 'runnable' and i.hold = 'key' limit $1)
  union all
  (select i.queue, 'code' from {schema}.instances i
   where i.status = 'runnable' and i.hold in ('version', 'unfit') limit $1)
  union all
  (select i.queue, i.hold from {schema}.instances i
   where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null limit $1)
  union all
  (select i.queue, i.hold from {schema}.instances i
   where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null limit $1)
  union all
  (select i.queue, 'undeclared' from {schema}.instances i
   where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null limit $1)
), executing as materialized (
  select i.queue, count(*) as number
  from {schema}.instances i
  where i.status = 'executing'
  group by i.queue
), known as (
  select w.queue as name from waiting w where w.queue is not null
  union
  select h.queue from held h
  union
  select e.queue from executing e
  union
  select q.name from {schema}.queues q
  union
  select m.queue from {schema}.machines m where m.active
  union
  select served.name
  from {schema}.workers w cross join lateral jsonb_object_keys(w.queues) as served(name)
  where w.lease_until > pg_catalog.now()
), counted as (
  select k.name,
         (select count(*)
          from ((select from {schema}.instances i
                 where i.queue = k.name and i.status = 'runnable' and i.hold is null and i.share is null
                 limit $1)
                union all
                (select from {schema}.instances i
                 where i.queue = k.name and i.status = 'runnable' and i.hold is null and i.share is not null
                 limit $1)
                limit $1) r)::integer as runnable,
         coalesce((select e.number from executing e where e.queue = k.name), 0)::integer as executing,
         case when not exists (select from held h group by h.hold having count(*) >= $1)
              then (select count(*) from held h where h.queue = k.name)::integer end as held
  from known k
)
select c.name, q.fair_by, q.paused_at, q.paused_by, q.reason, c.runnable, c.executing, c.held
from counted c left join {schema}.queues q on q.name = c.name
order by c.name
