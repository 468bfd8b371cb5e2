-- Find, among just inserted keyed instances, those whose key was buried while we waited for its last row's deletion.
-- Run in the transaction of start.sql, with a fresh snapshot.
-- Index: the primary key, driven from the ids; tombstones, one probe per row (offset 0: never joined). Locks: none.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
  and exists (select from stepwell.tombstones t
              where t.tenant = i.tenant and t.key = i.key
              offset 0)
