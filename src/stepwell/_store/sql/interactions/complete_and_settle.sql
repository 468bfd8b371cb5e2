-- Judge one completion and wake what may continue, in one round trip: what children/lock_parents, complete and
-- await_units/settle.sql do in three. A function, because each of its statements must see what was committed before the
-- lock was taken.
-- Keeps: all that those keep.
-- Index: theirs.
-- Locks: the instance, skip locked, then as they do.
-- Returns: nothing if another transaction holds the instance; else the verdict, what is wrong with the reply, the
--   status it found, the queues of what was woken, the transports with something to send, and the seconds to the next
--   deadline.
select a.verdict, a.problem, a.status, a.queues, a.transports, a.next_deadline
from {schema}._complete_one($1::bigint, $2::json) a
