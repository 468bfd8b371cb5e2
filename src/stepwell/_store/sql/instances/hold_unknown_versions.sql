-- Put rows that no live worker can run on hold, with the reason, until a worker registers their version.
-- Keeps: only rows that are still runnable and not on hold.
-- Index: the primary key, driven from the ids. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked.
-- Returns: the held rows, each with its concurrency limit, of which it takes no slot now.
with stranded as materialized (
  select i.id
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
    and not exists (select from {schema}.workers w
                    where w.lease_until > pg_catalog.now()
                      and w.machines @> array[i.machine || '@' || i.version])
  for no key update of i skip locked
)
update {schema}.instances i
set hold = 'version',
    hold_reason = format('no live worker registers %s version %s', i.machine, i.version)
from stranded s
where i.id = any (array[s.id])
returning i.id, i.concurrency_limit
