-- Wait until nobody admits by a limit, of whatever part, and keep others from it: the limit is about to change.
-- $1: its kind, as limits/lock_rows.sql has it; $2: its name.
-- Locks: the advisory lock of the name, alone, before that of any of its parts; held to the commit.
select pg_advisory_xact_lock(hashtextextended('stepwell ' || $1::text || ':' || $2::text, 0))
