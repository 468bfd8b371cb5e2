-- Insert limits that are not known yet, for a start through the SQL functions before any worker has started.
-- Locks: the new rows.
insert into {schema}.limits (kind, name, n, per, burst, declared)
select g.kind, g.name, g.n, g.per, g.burst,
       jsonb_build_object('n', g.n, 'per', extract(epoch from g.per), 'burst', g.burst)
from unnest($1::text[], $2::text[], $3::integer[], $4::interval[], $5::integer[]) as g(kind, name, n, per, burst)
order by g.kind collate "C", g.name collate "C"
on conflict (kind, name) do nothing
