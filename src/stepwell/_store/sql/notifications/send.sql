-- Send notifications, in a transaction of their own after the engine's commit. They are hints: no wait for the disk.
-- $1: names of channels, without the schema.
-- Locks: none but the server's notification queue, at the commit.
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
)
select {schema}._notify('{schema}_' || n.channel, n.payload)
from unsynced, unnest($1::text[], $2::text[]) as n(channel, payload)
