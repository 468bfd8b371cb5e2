-- Send notices, in a transaction of their own after the engine's commit. A hint only: no wait for the disk.
-- Locks: none but the server's own queue of notices, at the commit.
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
)
select pg_notify(n.channel, n.payload)
from unsynced, unnest($1::text[], $2::text[]) as n(channel, payload)
