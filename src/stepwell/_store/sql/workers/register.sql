-- Insert a worker with its first lease.
-- Locks: none.
-- Returns: its id, which the column's default draws at random, and the schema's version (see schema/read_version.sql).
insert into {schema}.workers (host, boot, pid, process, release, queues, machines, lease_until)
values ($1, $2, $3, $4, $5, $6::text::jsonb, $7::text[], pg_catalog.now() + $8::interval)
returning id,
          (select m.version from {schema}.meta m) as version,
          (select m.oldest_code from {schema}.meta m) as oldest_code
