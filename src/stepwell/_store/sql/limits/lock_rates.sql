-- Serialise statements that take tokens with statements that admit the wait queue; $1: rate limits.
-- Keeps: the lock is a write, but its transaction does not wait for the disk: after a crash of the server the timers
--   admit the same rows again, as their bucket says.
-- Index: the primary key of locks.
-- Locks: the row of each limit, in the order of their numbers (_lock_key), as in limits/lock_rows.sql.
select l.number
from {schema}.locks l
where l.number = any (array(select {schema}._lock_key('rate', key) from unnest($1::text[]) as given(key)))
  and (select set_config('synchronous_commit', 'off', true)) = 'off'
order by l.number
for no key update
