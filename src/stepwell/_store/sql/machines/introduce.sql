-- Make machine versions known that are not yet, for a start through the SQL doors before any worker has come.
-- Keeps: the active version stays the active one; the newest of a name without one becomes it.
-- Run under machines/lock.sql. Locks: the new rows.
insert into stepwell.machines (name, version, initial, queue, steps, active, retention, limits)
select g.name, g.version, g.initial, g.queue, string_to_array(g.steps, ','),
       g.version = max(g.version) over (partition by g.name)
         and not exists (select from stepwell.machines m where m.name = g.name and m.active),
       g.retention, g.limits::jsonb
from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::interval[], $7::text[])
     as g(name, version, initial, queue, steps, retention, limits)
order by g.name, g.version
on conflict (name, version) do nothing
