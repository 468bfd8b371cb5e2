-- Consume signals by id: gone, or, where a dedup key must be remembered, without payload.
-- Run in the transaction of commit.sql, for rows that committed.
-- Index: the primary key, one probe per id, then by ctid. (A range, in order: signals_inbox holds the id as well, and
--   on an empty table would seem as good, but it is not in the order of ids.) Locks: the rows.
with used as materialized (
  select s.*
  from unnest($1::bigint[]) as given(id)
  cross join lateral (
    select s.ctid as tid, s.dedup_key is not null as is_remembered
    from stepwell.signals s
    where s.id >= given.id and s.id <= given.id
    order by s.id
    limit 1
  ) s
), remembered as (
  update stepwell.signals s
  set consumed = true, payload = null
  from used u
  where s.ctid = u.tid and u.is_remembered
)
delete from stepwell.signals s
using used u
where s.ctid = u.tid and not u.is_remembered
