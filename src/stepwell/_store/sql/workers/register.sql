-- Enter a worker with a fresh id and its first lease. Locks: none. Returns: the id.
insert into stepwell.workers (host, boot, pid, process, release, queues, machines, lease_until)
values ($1, $2, $3, $4, $5, $6::text::jsonb, $7::text[], pg_catalog.now() + $8::interval)
returning id
