-- Mark a worker's claims up to $2 as started, except those still waiting ($3), and read the states of the instances $4.
-- $5: some have slots or tokens.
-- Keeps: the fences are read in the same snapshot as the states, so a step starts only on a row that is still the
--   claim's: not cancelled, restarted or reaped, nor a claim that the server lost in a crash. The mark is written
--   before any of these steps runs, so that the reaper can count crashes; a mark in the future, from before the clock
--   went back, is replaced. It need not survive a crash of the server (the claims then count as started), so it does
--   not wait for the disk; with $5 it does, because slots and tokens must survive.
-- Index: the primary keys, one scan each: a join costs five times as much.
-- Locks: the worker's row.
-- Returns: one row: whether the worker exists (a lease that ran out in an outage is renewed by the next beat); the ids
--   and fences that it holds; the found ids, their states between separators (\x1e, which JSON escapes), and the ids of
--   unchecked states.
with unsynced as materialized (
  select case when not $5::boolean then set_config('synchronous_commit', 'off', true) end
), noted as (
  update {schema}.workers w
  set begun_at = case when w.begun_at <= clock_timestamp() then greatest(w.begun_at, $2::timestamptz)
                      else $2::timestamptz end,
      waiting = $3::text::bigint[]
  from unsynced
  where w.id = $1
  returning w.id
), held as (
  select array_agg(i.id) as ids, array_agg(i.fence) as fences
  from {schema}.instances i
  where i.id = any ($4::text::bigint[]) and i.worker_id = $1
), stored as (
  select array_agg(d.id) as ids, string_agg(d.state::text, E'\x1e') as states,
         array_agg(d.id) filter (where d.unchecked) as unchecked
  from {schema}.instance_data d
  where d.id = any ($4::text::bigint[])
)
select exists (select from noted) as is_held, h.ids as held, h.fences, s.ids as found, s.states, s.unchecked
from held h, stored s
