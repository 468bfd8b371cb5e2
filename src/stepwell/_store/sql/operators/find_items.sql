-- Find a page of the continuations of instances that have not ended: up to $3; of the first instance in $1 only those
-- after the id $2. For large trees; operators/find_subtree.sql reads a tree at once.
-- Index: await_units_open, instances_continuing, by probes, in the given order, and no further than the page.
-- Locks: none.
-- Returns: id, concurrency key and parent of each.
select i.id, i.concurrency_key, i.parent_id
from (select g.id, g.place from unnest($1::bigint[]) with ordinality as g(id, place) order by g.place) p
cross join lateral (
  select i.id, i.concurrency_key, p.id as parent_id
  from {schema}.await_units u
  cross join lateral (
    select i.id, i.concurrency_key
    from {schema}.instances i
    where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
    offset 0
  ) i
  where u.instance_id = p.id and u.status = 'waiting' and u.opened <= 1000
    and i.id > case when p.place = 1 then $2::bigint else 0 end
  order by i.id
  limit $3::integer
) i
order by p.place, i.id
limit $3::integer
