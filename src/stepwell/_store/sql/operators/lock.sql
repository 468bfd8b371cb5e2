-- Lock instances, parents and children together, in id order. Index: the primary key. Waits for whoever holds them.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update
