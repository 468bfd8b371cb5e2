-- Let the next ones behind limits go, $2 of each, in one round trip: what lock and free.sql do in two. It is a function
-- (0013), because free.sql must see what was committed before the lock was there.
-- Keeps: what those keep. Nobody waits for the disk: what a crash of the server undoes, the reaper's look does again.
--   So it is no part of a transaction that has to be durable.
-- Index: theirs. Locks: the limits', then the rows, skip locked. Returns: the queue of each row let go.
select g.queue
from stepwell._let_go($1::text[], $2::integer[]) g
