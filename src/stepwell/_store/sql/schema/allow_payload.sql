-- Let the SQL doors take payloads up to this size. Locks: the row of meta, if it changes.
update stepwell.meta
set max_payload = $1
where max_payload is distinct from $1
