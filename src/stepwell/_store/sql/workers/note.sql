-- Note that a worker's claims up to $2 have begun, but for those still waiting ($3), whose states are known already.
-- Keeps: as begin.sql, whose first half this is.
-- Index: the primary key. Locks: the worker's row. Returns: its id; nothing if the worker is buried.
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
)
update stepwell.workers w
set begun_at = greatest(w.begun_at, $2::timestamptz), waiting = $3::bigint[]
from unsynced
where w.id = $1
returning w.id
