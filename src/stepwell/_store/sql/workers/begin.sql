-- Note that a worker's claims up to $2 have begun, but for those still waiting ($3), and read the states of $4.
-- $5: some of them have slots or tokens of limits.
-- Keeps: the note is there before any of these steps runs, so that the reaper counts crashes of begun steps only.
--   It need not survive a crash of the server (the claims it speaks of count as begun then): no wait for the disk.
--   What limits have given must: with $5 it waits, by which all that was committed before is on the disk too, and what
--   is no longer the worker's, since the server crashed between both, does not begin.
-- Index: the primary keys. Locks: the worker's row.
-- Returns: one row: whether the worker is there (a lease that ran out in an outage is not buried yet, and its next beat
--   renews it); the ids that are, their states between separators (\x1e, which JSON escapes), and the ids of those that
--   have met no type yet.
with unsynced as materialized (
  select case when not $5::boolean then set_config('synchronous_commit', 'off', true) end
), noted as (
  update stepwell.workers w
  set begun_at = greatest(w.begun_at, $2::timestamptz), waiting = $3::text::bigint[]
  from unsynced
  where w.id = $1
  returning w.id
)
select exists (select from noted) as is_held,
       array_agg(d.id) as ids,
       string_agg(d.state::text, E'\x1e') as states,
       array_agg(d.id) filter (where d.unchecked) as unchecked
from noted cross join stepwell.instance_data d
where d.id = any ($4::text::bigint[])
  and (not $5 or exists (select from stepwell.instances i where i.id = d.id and i.worker_id = $1 offset 0))
