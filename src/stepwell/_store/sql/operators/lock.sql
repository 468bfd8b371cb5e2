-- Lock instances, parents and children together, in id order.
-- Index: the primary key.
-- Locks: the rows, no key update; waits for other transactions.
-- Returns: the locked ids.
select i.id
from {schema}.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update
