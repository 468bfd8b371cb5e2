-- Lock an executing instance while interactions are appended to the unit it fills, under its fence.
-- Keeps: only the worker that holds the claim appends; completions of the same unit wait (they lock the instance too).
-- Index: the primary keys.
-- Locks: the row; waits for other transactions.
-- Returns: the unit being filled (a new id if there is none yet), and how many interactions it has; nothing if the
--   claim is lost.
with held as (
  update {schema}.instances i
  set filling_unit_id = coalesce(i.filling_unit_id, nextval('{schema}.await_units_id_seq'))
  where i.id = $1 and i.worker_id = $2 and i.fence = $3 and i.status || '' = 'executing'
  returning i.filling_unit_id
)
select h.filling_unit_id as unit_id,
       coalesce((select u.opened from {schema}.await_units u where u.id = h.filling_unit_id), 0) as opened
from held h
