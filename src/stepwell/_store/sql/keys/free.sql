-- Let the most urgent row behind each free key go. Run under keys/lock.sql, after the commit that freed the key.
-- Keeps: nothing is let go while the key is busy.
-- Index: instances_behind_key; the holder by one probe per key (offset 0: never joined); the primary key.
-- Locks: one row per key, skip locked (what a foreign transaction holds is passed over; keys/find_idle.sql finds it).
-- Returns: the queue of each row let go.
with following as materialized (
  select n.id
  from (select distinct key from unnest($1::text[]) as given(key)) k
  cross join lateral (
    select i.id
    from stepwell.instances i
    where i.concurrency_key = k.key and i.status = 'runnable' and i.hold = 'key'
    order by i.priority, i.due_at, i.id
    limit 1
    for no key update skip locked
  ) n
  where not exists (select from stepwell.instances e
                    where e.concurrency_key = k.key and e.status = 'executing'
                    offset 0)
)
update stepwell.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue
