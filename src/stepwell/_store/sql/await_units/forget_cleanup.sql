-- Delete the pending cleanup of a retried instance's unit, because the remaining interactions are asked again.
-- Keeps: run in the transaction of operators/retry.sql, before await_units/reopen.sql; waits for a page that is being
--   closed.
-- Index: the primary keys.
-- Locks: the cleanup.
-- Returns: nothing.
delete from {schema}.cleanups c
using {schema}.instances i
where i.id = $1 and c.unit_id = any (array[i.await_unit_id])
