-- Insert or update declared limits. What an operator has changed at run time stays until the declaration itself
-- changes.
-- Keeps: one row per kind and name; the version grows with each change.
-- Locks: the rows, by kind and name.
-- Returns: the concurrency limits that are new or changed.
insert into {schema}.limits as l (kind, name, n, per, burst, declared)
select g.kind, g.name, g.n, g.per, g.burst,
       jsonb_build_object('n', g.n, 'per', extract(epoch from g.per), 'burst', g.burst)
from unnest($1::text[], $2::text[], $3::integer[], $4::interval[], $5::integer[]) as g(kind, name, n, per, burst)
order by g.kind collate "C", g.name collate "C"
on conflict (kind, name) do update
set n = excluded.n, per = excluded.per, burst = excluded.burst, declared = excluded.declared,
    version = l.version + 1, changed_at = pg_catalog.now(), changed_by = null
where l.declared <> excluded.declared
returning l.kind, l.name
