-- Load the children of the latest round of each parent, in spec order. Index: instances_parent. Locks: none.
select c.parent_id, c.child_index as index, c.id, c.key, c.machine, c.version, c.status,
       d.state::text as state, d.result::text as result, d.error::text as error
from unnest($1::bigint[], $2::integer[]) as p(id, round)
join stepwell.instances c on c.parent_id = p.id and c.parent_round = p.round
join stepwell.instance_data d on d.id = c.id
order by c.parent_id, c.child_index
