-- Serialise registrations of machines.
-- Locks: one row of locks, to the end of the transaction.
select l.number
from {schema}.locks l
where l.number = {schema}._lock_key('engine', 'machines')
for no key update
