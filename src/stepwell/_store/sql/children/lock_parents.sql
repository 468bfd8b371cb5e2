-- Lock the parents whose joins a flush will count, but for those that somebody else holds: their children leave the
-- batch and come back. Index: the primary key. Locks: the parents, skip locked. Returns: the locked ids.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update skip locked
