-- Resolve a key: the live holder, else the newest row that had it.
-- Index: one probe of instances_guard, then one of instances_key, however often the key was used.
-- Locks: none.
-- Returns: one row; its id is null if no row has the key.
select coalesce(
  (select i.id from {schema}.instances i
   where i.tenant = $1 and i.key = $2 and (i.key_scope = 'forever' or i.finished_at is null)),
  (select i.id from {schema}.instances i
   where i.tenant = $1 and i.key = $2 and i.key_scope is not null
   order by i.id desc
   limit 1)) as id
