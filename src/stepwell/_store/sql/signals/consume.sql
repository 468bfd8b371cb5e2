-- Consume signals by id: gone, or, where a dedup key must be remembered, without payload.
-- Run in the transaction of commit.sql, for rows that committed. Index: the primary key. Locks: the rows.
with remembered as (
  update stepwell.signals s
  set consumed = true, payload = null
  where s.id = any ($1::bigint[]) and s.dedup_key is not null
)
delete from stepwell.signals s
where s.id = any ($1::bigint[]) and s.dedup_key is null
