-- Insert or update machine versions. The newest version of a name that was ever registered becomes its active one.
-- Keeps: one active version per name; one shape per version while it has living instances (machines/find_in_use.sql has
--   checked that). Run under machines/lock.sql.
-- Locks: the rows, by name and version.
insert into {schema}.machines as m (name, version, initial, queue, steps, active, retention, limits, shape)
select g.name, g.version, g.initial, g.queue, string_to_array(g.steps, ','), false, g.retention, g.limits::jsonb,
       g.shape
from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::interval[], $7::text[], $8::text[])
     as g(name, version, initial, queue, steps, retention, limits, shape)
order by g.name, g.version
on conflict (name, version) do update
set initial = excluded.initial, queue = excluded.queue, steps = excluded.steps, retention = excluded.retention,
    limits = excluded.limits, shape = excluded.shape, updated_at = pg_catalog.now()
where (m.initial, m.queue, m.steps, m.retention, m.limits, m.shape)
      is distinct from (excluded.initial, excluded.queue, excluded.steps, excluded.retention, excluded.limits,
                        excluded.shape)
