-- Keep an executing instance for a moment in which questions are appended to the unit it fills, under its fence.
-- Keeps: only the worker that holds the claim appends; admissions to the same unit wait (they lock the instance too).
-- Index: the primary keys. Locks: the row; waits for whoever holds it.
-- Returns: the unit that is filled (the next one's id, if none is yet), and how many questions it has; nothing if the
--   claim is no longer ours.
with held as (
  update stepwell.instances i
  set filling_unit_id = coalesce(i.filling_unit_id, nextval('stepwell.await_units_id_seq'))
  where i.id = $1 and i.worker_id = $2 and i.fence = $3 and i.status || '' = 'executing'
  returning i.filling_unit_id
)
select h.filling_unit_id as unit_id,
       coalesce((select u.opened from stepwell.await_units u where u.id = h.filling_unit_id), 0) as opened
from held h
