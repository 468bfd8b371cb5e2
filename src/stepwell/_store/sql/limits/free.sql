-- Let the most urgent rows of each line go, as many as there is room for, and at most $2 of each (null: no matter how
-- many). Run under limits/lock.sql, after the statement that made room.
-- Keeps: nothing is let go while the limit is full; a limit that nobody declares lets nobody go.
-- Index: instances_slot, instances_in_limit_line, the primary key. Locks: the rows, skip locked (what a foreign
--   transaction holds is passed over; keys/find_idle.sql finds it).
-- Returns: the queue of each row let go.
with room as materialized (
  select g.key, least(g.most, 1000, l.n - (select count(*)
                                           from stepwell.instances e
                                           where e.concurrency_limit = g.key and e.status = 'executing'
                                             and e.slot is not null)) as number
  from unnest($1::text[], $2::integer[]) as g(key, most)
  join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), following as materialized (
  select n.id
  from room r
  cross join lateral (
    select i.id
    from stepwell.instances i
    where i.concurrency_limit = r.key and i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit greatest(r.number, 0)
    for no key update skip locked
  ) n
)
update stepwell.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue
