-- Serialise "no slot is free: wait" with "a slot is free: admit the next row"; $1: concurrency limits.
-- Keeps: both sides take this lock before they read, so one of them sees what the other did.
-- Index: the primary key of locks.
-- Locks: the row of each limit, in the order of their numbers (_lock_key), to the end of the transaction, as in
--   limits/lock_rows.sql.
select l.number
from {schema}.locks l
where l.number = any (array(select {schema}._lock_key('limit', key) from unnest($1::text[]) as given(key)))
order by l.number
for no key update
