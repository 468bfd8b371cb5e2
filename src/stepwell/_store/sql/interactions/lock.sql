-- Lock instances whose questions are answered, in id order, waiting no longer than $2 for whoever holds one.
-- Keeps: the bound holds for the transaction, and is set before anything is locked. Index: the primary key.
-- Locks: the rows, no key update; who waits longer gives up. Returns: the locked ids.
with bounded as materialized (
  select set_config('lock_timeout', $2::text, true)
)
select i.id
from bounded, stepwell.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update of i
