-- Set a limit to what the code declares.
-- Locks: the row.
-- Returns: its kind and name, if it exists.
update {schema}.limits l
set n = (l.declared ->> 'n')::integer, per = make_interval(secs => (l.declared ->> 'per')::float8),
    burst = (l.declared ->> 'burst')::integer,
    version = l.version + 1, changed_at = pg_catalog.now(), changed_by = null
where l.kind = $1 and l.name = $2
returning l.kind, l.name
