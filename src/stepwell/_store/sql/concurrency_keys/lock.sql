-- Serialise "the key is busy: wait" with "the key is free: admit the next row".
-- Keeps: both sides take this lock before they read, so one of them sees what the other did.
-- Index: the primary key of locks.
-- Locks: the row of each key, in the order of their numbers (_lock_key), to the end of the transaction.
select l.number
from {schema}.locks l
where l.number = any (array(select {schema}._lock_key('key', key) from unnest($1::text[]) as given(key)))
order by l.number
for no key update
