-- Find machine versions that may not be registered: their shape has changed, and they have instances that have not
-- ended. Run under machines/lock.sql, before machines/register.sql, in its transaction.
-- Keeps: instances that fit do not count: those at a step that only the given shape has (every shape has the initial
--   step), and those at the initial step that have asked about some of their items in the given shape.
-- Index: none; instances are read only where a shape has changed, which is rare, and only until the first one.
-- Locks: none.
-- Returns: name, version, and the id of one such instance.
select g.name, g.version, r.id
from unnest($1::text[], $2::integer[], $3::text[], $4::text[]) as g(name, version, shape, steps)
join {schema}.machines m on m.name = g.name and m.version = g.version
cross join lateral (
  select i.id
  from {schema}.instances i
  where i.machine = m.name and i.version = m.version and i.status not in ('done', 'failed', 'cancelled')
    and (i.step = m.initial or i.step <> all (string_to_array(g.steps, ',')))
    and not exists (select from {schema}.await_units u
                    where u.id = i.filling_unit_id and u.item_step = any (string_to_array(g.steps, ','))
                    offset 0)
  limit 1
) r
where m.shape is not null and m.shape is distinct from g.shape
order by g.name, g.version
