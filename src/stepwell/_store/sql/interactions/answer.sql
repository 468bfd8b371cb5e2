-- Judge one answer, and let go on what may, in one round trip: what lock_parents, admit and settle.sql do in three.
-- It is a function (0010), because each of its statements must see what was committed before the lock was there.
-- Keeps: all that those keep. Index: theirs. Locks: the instance, skip locked, then as they do.
-- Returns: nothing if somebody holds the instance; else the verdict, what is wrong with the reply, the status it found,
--   the queues of what goes on, the transports with something to send, and the seconds to the next deadline.
select a.verdict, a.problem, a.status, a.queues, a.transports, a.next_deadline
from stepwell._answer_one($1::bigint, $2::json) a
