-- Let the SQL functions accept payloads up to this size.
-- Locks: the row of meta, if it changes.
update {schema}.meta
set max_payload = $1
where max_payload is distinct from $1
