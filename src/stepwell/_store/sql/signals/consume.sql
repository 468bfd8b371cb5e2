-- Consume signals by id: delete them, or, where a dedup key must be remembered, their payload. Run in the transaction
-- of instances/commit.sql, for rows that committed.
-- Index: the primary key, one probe per id, then by ctid. The range in order of ids keeps the planner from
--   signals_inbox, which contains the id but not in order, and seems as good on an empty table.
-- Locks: the rows.
with used as materialized (
  select s.*
  from unnest($1::bigint[]) as given(id)
  cross join lateral (
    select s.ctid as tid, s.dedup_key is not null as is_remembered
    from {schema}.signals s
    where s.id >= given.id and s.id <= given.id
    order by s.id
    limit 1
  ) s
), remembered as (
  update {schema}.signals s
  set consumed = true, payload = null
  from used u
  where s.ctid = u.tid and u.is_remembered
)
delete from {schema}.signals s
using used u
where s.ctid = u.tid and not u.is_remembered
