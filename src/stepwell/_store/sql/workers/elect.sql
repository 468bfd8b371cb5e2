-- Try to become the worker that does a duty ($1).
-- Locks: one row of locks, to the end of the transaction; waits for no lock.
with mine as materialized (
  select l.number
  from {schema}.locks l
  where l.number = {schema}._lock_key('engine', $1::text)
  for no key update skip locked
)
select exists (select from mine) as elected
