-- Lock the instances of interactions that are to be completed, in id order, waiting at most $2 per lock.
-- Keeps: the timeout holds for the transaction, and is set before anything is locked.
-- Index: the primary key.
-- Locks: the rows, no key update; fails after the timeout.
-- Returns: the locked ids.
with bounded as materialized (
  select set_config('lock_timeout', $2::text, true)
)
select i.id
from bounded, {schema}.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update of i
