-- Take rows that no live worker can run out of the claim's way, with the reason, until one registers their version.
-- Keeps: only rows still runnable and unheld whose machine and version no live worker registers.
-- Index: the primary key, driven from the ids (|| '' and any (array[…]): see commit.sql).
-- Locks: the rows, skip locked. Returns: what was held, with the limit of which
--   it takes no slot now.
with stranded as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
    and not exists (select from stepwell.workers w
                    where w.lease_until > pg_catalog.now()
                      and w.machines @> array[i.machine || '@' || i.version])
  for no key update of i skip locked
)
update stepwell.instances i
set hold = 'version',
    hold_reason = format('no live worker registers %s version %s', i.machine, i.version)
from stranded s
where i.id = any (array[s.id])
returning i.id, i.concurrency_limit
