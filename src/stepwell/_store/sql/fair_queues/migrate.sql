-- Set the share of rows in queues that have become fair, and clear it in queues that are no longer fair.
-- Keeps: at most 1,000 rows of each queue of $1, most urgent first; a row is always in one of the two indexes, so that
--   a claim finds it before and after.
-- Index: queues; instances_claim or instances_fair, in order until the limit; the primary key.
-- Locks: these rows, no key update, skip locked.
-- Returns: the queue of each changed row.
with queues as materialized (
  select n.name, exists (select from {schema}.queues q where q.name = n.name and q.fair_by is not null) as is_fair
  from unnest($1::text[]) as n(name)
), misplaced as materialized (
  select m.id
  from queues q
  cross join lateral (
    select *
    from (select i.id
          from {schema}.instances i
          where q.is_fair and i.queue = q.name and i.status = 'runnable' and i.hold is null and i.share is null
          order by i.priority, i.due_at, i.id
          limit 1000
          for no key update skip locked) unshared
    union all
    select *
    from (select i.id
          from {schema}.instances i
          where not q.is_fair and i.queue = q.name and i.status = 'runnable' and i.hold is null
            and i.share is not null
          order by i.priority, i.share, i.due_at, i.id
          limit 1000
          for no key update skip locked) shared
  ) m
)
update {schema}.instances i
set share = case when i.share is null then hashtextextended(i.tenant, 0) end
from misplaced m
where i.id = any (array[m.id])
returning i.queue
