-- Insert machine versions that are not known yet, for a start through the SQL functions before any worker has started.
-- Run under machines/lock.sql.
-- Keeps: the active version stays active; of a name without one, the newest version becomes active.
-- Locks: the new rows.
insert into {schema}.machines (name, version, initial, queue, steps, active, retention, limits, shape)
select g.name, g.version, g.initial, g.queue, string_to_array(g.steps, ','),
       g.version = max(g.version) over (partition by g.name)
         and not exists (select from {schema}.machines m where m.name = g.name and m.active),
       g.retention, g.limits::jsonb, g.shape
from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::interval[], $7::text[], $8::text[])
     as g(name, version, initial, queue, steps, retention, limits, shape)
order by g.name, g.version
on conflict (name, version) do nothing
