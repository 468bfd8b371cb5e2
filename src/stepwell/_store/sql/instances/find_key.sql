-- Resolve a key: the live occupant, else the newest row that carried it.
-- Index: instances_guard, instances_key. Locks: none. Returns: one id or nothing.
select i.id
from stepwell.instances i
where i.tenant = $1 and i.key = $2 and i.key_scope is not null
order by i.guard is not null desc, i.id desc
limit 1
