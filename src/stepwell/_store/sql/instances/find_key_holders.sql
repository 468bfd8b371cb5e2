-- Find what holds keys: the live instance, or the pruned one that left a tombstone.
-- Index: instances_guard, tombstones.
-- Locks: none.
-- Returns: position and id; a key that has become free meanwhile is missing.
select (k.position - 1)::integer as position, coalesce(i.id, t.instance_id) as id
from unnest($1::text[], $2::text[]) with ordinality as k(tenant, key, position)
left join {schema}.instances i
  on i.tenant = k.tenant and i.key = k.key and (i.key_scope = 'forever' or i.finished_at is null)
left join {schema}.tombstones t on t.tenant = k.tenant and t.key = k.key
where i.id is not null or t.instance_id is not null
