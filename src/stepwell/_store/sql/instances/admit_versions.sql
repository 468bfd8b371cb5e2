-- Admit rows on hold if a live worker registers their version by now, or it is in $1, or their machine is in $3 (its
-- code migrates older versions). $2 also admits rows that did not fit their code: a starting worker may have code that
-- fits.
-- Index: instances_unrunnable, one step per distinct version on hold, and then only the admitted rows: a large backlog
--   that no worker can run is not read again and again.
-- Locks: up to 1,000 rows, skip locked.
-- Returns: the queue of each admitted row.
with recursive held(hold, machine, version) as (
  (select i.hold, i.machine, i.version
   from {schema}.instances i
   where i.status = 'runnable' and i.hold in ('version', 'unfit')
   order by i.hold, i.machine, i.version
   limit 1)
  union all
  select n.hold, n.machine, n.version
  from held h
  cross join lateral (
    select i.hold, i.machine, i.version
    from {schema}.instances i
    where i.status = 'runnable' and i.hold in ('version', 'unfit')
      and (i.hold, i.machine, i.version) > (h.hold, h.machine, h.version)
    order by i.hold, i.machine, i.version
    limit 1
  ) n
), served as materialized (
  select h.hold, h.machine, h.version
  from held h
  where (h.hold = 'version' or $2::boolean)
    and ((h.machine || '@' || h.version) = any ($1::text[])
         or h.machine = any ($3::text[])
         or h.hold = 'version' and exists (select from {schema}.workers w
                                           where w.lease_until > pg_catalog.now()
                                             and w.machines @> array[h.machine || '@' || h.version]))
), runnable as materialized (
  select n.id
  from served s
  cross join lateral (
    select i.id
    from {schema}.instances i
    where i.hold = s.hold and i.machine = s.machine and i.version = s.version
      and i.status = 'runnable' and i.hold in ('version', 'unfit')
    limit 1000
    for no key update skip locked
  ) n
  limit 1000
)
update {schema}.instances i
set hold = null, hold_reason = null
from runnable r
where i.id = any (array[r.id])
returning i.queue
