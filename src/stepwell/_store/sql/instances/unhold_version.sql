-- Let rows back into the claim's index whose version is registered by a live worker after all, or is in $1, or whose
-- machine is in $3 (it can bring older versions forward). $2 also frees what did not fit its code: a starting worker
-- may bring code that it fits.
-- Index: instances_unrunnable. Locks: up to 1,000 rows, skip locked. Returns: the queue of each freed row.
with runnable as materialized (
  select i.id
  from stepwell.instances i
  where i.status = 'runnable' and i.hold in ('version', 'unfit')
    and (i.hold = 'version' or $2::boolean)
    and ((i.machine || '@' || i.version) = any ($1::text[])
         or i.machine = any ($3::text[])
         or i.hold = 'version' and exists (select from stepwell.workers w
                                           where w.lease_until > pg_catalog.now()
                                             and w.machines @> array[i.machine || '@' || i.version]))
  limit 1000
  for no key update of i skip locked
)
update stepwell.instances i
set hold = null, hold_reason = null
from runnable r
where i.id = r.id
returning i.queue
