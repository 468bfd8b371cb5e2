-- Serialise those who take tokens with those who let the line go; $1: rate limits.
-- Locks: one advisory lock per limit, in the order of their hashes; the same as limits/lock_rows.sql.
select pg_advisory_xact_lock(k.hash)
from (select distinct hashtextextended('stepwell:rate:' || key, 0) as hash
      from unnest($1::text[]) as given(key)
      order by 1) k
