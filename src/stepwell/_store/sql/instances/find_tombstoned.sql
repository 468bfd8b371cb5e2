-- Find, among keyed instances just inserted, those with a key that got a tombstone while the insert waited for the
-- deletion of its last holder. Run in the transaction of instances/start.sql, with a fresh snapshot.
-- Index: the primary key, driven from the ids; tombstones, one probe per row. See docs/internals/sql-plans.md.
-- Locks: none.
select i.id
from {schema}.instances i
where i.id = any ($1::bigint[])
  and exists (select from {schema}.tombstones t
              where t.tenant = i.tenant and t.key = i.key
              offset 0)
