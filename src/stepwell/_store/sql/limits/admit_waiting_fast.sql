-- Admit the next $2 rows behind each concurrency limit in one round trip: limits/lock.sql and limits/admit_waiting.sql
-- in one function, because the second must see what was committed before the lock was taken.
-- Keeps: what those keep. The transaction does not wait for the disk, since the reaper repeats what a crash of the
--   server undoes; so it must not be part of a transaction that has to be durable.
-- Index: theirs.
-- Locks: the limits, then the rows, skip locked.
-- Returns: the queue of each admitted row.
select g.queue
from {schema}._let_go($1::text[], $2::integer[]) g
