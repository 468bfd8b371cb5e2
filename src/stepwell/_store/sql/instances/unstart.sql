-- Take back instances that were inserted in this very transaction. Index: the primary keys. Locks: these rows.
with gone as (
  delete from stepwell.instances i
  where i.id = any ($1::bigint[])
  returning i.id
)
delete from stepwell.instance_data d
using gone g
where d.id = any (array[g.id])
