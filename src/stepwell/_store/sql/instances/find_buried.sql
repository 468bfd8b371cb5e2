-- Find, among just inserted keyed instances, those whose key was buried while we waited for its last row's deletion.
-- Run in the transaction of start_keyed.sql, with a fresh snapshot. Index: the primary keys. Locks: none.
select i.id
from stepwell.instances i join stepwell.tombstones t on t.tenant = i.tenant and t.key = i.key
where i.id = any ($1::bigint[])
