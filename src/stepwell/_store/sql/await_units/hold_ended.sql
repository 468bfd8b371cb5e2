-- Lock the unit at which a retried instance ended, if its interactions are to be asked again: it was closed with the
-- instance, its timeout was to fail the instance, or one of its items has failed.
-- Keeps: an end that the step has seen, such as a timeout that wakes, is seen again when the step runs again. Run in
--   the transaction of operators/retry.sql, before await_units/reopen.sql.
-- Index: the primary keys.
-- Locks: the unit.
-- Returns: its id, how many interactions it has, and its window; nothing if there is nothing to ask again.
select u.id as unit_id, u.opened, u."window"
from {schema}.instances i
join {schema}.await_units u on u.id = any (array[i.await_unit_id])
where i.id = $1 and u.is_filled
  and (u.status = 'cancelled' or u.status = 'timed_out' and u.on_timeout = 'fail'
       or u.status = 'failed' and u.item_step is not null)
for no key update of u
