-- Change a limit at run time; null leaves a value as it is. The change stays until the code's declaration changes, or a
-- reset.
-- Locks: the row.
-- Returns: its kind and name, if it exists.
update {schema}.limits l
set n = coalesce($3::integer, l.n), per = coalesce($4::interval, l.per), burst = coalesce($5::integer, l.burst),
    version = l.version + 1, changed_at = pg_catalog.now(), changed_by = $6
where l.kind = $1 and l.name = $2
returning l.kind, l.name
