-- Make machine versions known. The newest version of a name that was ever registered is its active one.
-- Keeps: one active version per name. Run under machines/lock.sql. Locks: the rows, by name and version.
insert into stepwell.machines as m (name, version, initial, queue, steps, active, retention, limits)
select g.name, g.version, g.initial, g.queue, string_to_array(g.steps, ','), false, g.retention, g.limits::jsonb
from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::interval[], $7::text[])
     as g(name, version, initial, queue, steps, retention, limits)
order by g.name, g.version
on conflict (name, version) do update
set initial = excluded.initial, queue = excluded.queue, steps = excluded.steps, retention = excluded.retention,
    limits = excluded.limits, updated_at = pg_catalog.now()
where (m.initial, m.queue, m.steps, m.retention, m.limits)
      is distinct from (excluded.initial, excluded.queue, excluded.steps, excluded.retention, excluded.limits)
