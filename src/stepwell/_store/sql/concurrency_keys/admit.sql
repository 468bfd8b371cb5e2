-- Admit the most urgent row behind each free key. Run under concurrency_keys/lock.sql, after the commit that freed the
-- key.
-- Keeps: nothing is admitted while the key is busy.
-- Index: instances_behind_key; the key's holder by one probe per key; the primary key. See docs/internals/sql-plans.md.
-- Locks: one row per key, skip locked; what another transaction holds is left to concurrency_keys/find_idle.sql.
-- Returns: the queue of each admitted row.
with following as materialized (
  select n.id
  from (select distinct key from unnest($1::text[]) as given(key)) k
  cross join lateral (
    select i.id
    from {schema}.instances i
    where i.concurrency_key = k.key and i.status = 'runnable' and i.hold = 'key'
    order by i.priority, i.due_at, i.id
    limit 1
    for no key update skip locked
  ) n
  where not exists (select from {schema}.instances e
                    where e.concurrency_key = k.key and e.status = 'executing'
                    offset 0)
)
update {schema}.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue
