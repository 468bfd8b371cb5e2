-- Delete instances that this very transaction has inserted.
-- Index: the primary keys.
-- Locks: these rows.
with gone as (
  delete from {schema}.instances i
  where i.id = any ($1::bigint[])
  returning i.id
)
delete from {schema}.instance_data d
using gone g
where d.id = any (array[g.id])
