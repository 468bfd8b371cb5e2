-- Serialise "there is no slot, wait in the line" with "a slot is free, let the next one go"; $1: concurrency limits.
-- Keeps: both sides take this lock before they look, so one of them sees what the other did. Held to the commit.
-- Locks: one advisory lock per limit, in the order of their hashes; the same as limits/lock_rows.sql.
select pg_advisory_xact_lock(k.hash)
from (select distinct hashtextextended('stepwell:limit:' || key, 0) as hash
      from unnest($1::text[]) as given(key)
      order by 1) k
