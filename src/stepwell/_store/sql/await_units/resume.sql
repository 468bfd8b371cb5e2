-- Set a unit with reopened interactions (await_units/reopen.sql) to waiting, and its instance with it. $2: how many
-- interactions are completed; $3: how many continuations there are.
-- Keeps: run in the transaction of operators/retry.sql, before await_units/settle.sql.
-- Index: the primary keys.
-- Locks: the unit, the instance (both locked already).
-- Returns: nothing.
with again as (
  update {schema}.await_units u
  set status = 'waiting', finished_at = null, resolved = $2::integer,
      in_flight = least(u.opened - $2::integer, u."window"), continuing = $3::integer
  where u.id = $1
  returning u.id, u.instance_id
)
update {schema}.instances i
set status = 'awaiting_external'
from again a
where i.id = any (array[a.instance_id])
