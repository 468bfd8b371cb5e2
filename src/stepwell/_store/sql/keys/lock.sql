-- Serialise "the key is busy, wait behind it" with "the key is free, let the next one go".
-- Keeps: both sides take this lock before they look, so one of them sees what the other did. Held to the commit.
-- Locks: one advisory lock per key, in the order of their hashes.
select pg_advisory_xact_lock(k.hash)
from (select distinct hashtextextended('stepwell:' || key, 0) as hash
      from unnest($1::text[]) as given(key)
      order by 1) k
