-- Admit rows that were on hold because their limit did not exist or was too small for them, and that fit it now. One
-- page: of the next $3 such rows after the hold $1 and the id $2.
-- Index: instances_unlimited, normally empty, no further than the page (a great many rows may wait for a limit that no
--   code declares); the primary key; limits by kind and name.
-- Locks: the rows that fit, skip locked.
-- Returns: one row: the queues of admitted rows; the hold and the id to continue after (null: that was the last page).
with looked as materialized (
  select i.id, i.hold
  from {schema}.instances i
  where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null
    and (i.hold, i.id) > ($1::text, $2::bigint)
  order by i.hold, i.id
  limit $3::integer
), fitting as materialized (
  select i.id
  from looked l
  join {schema}.instances i on i.id = any (array[l.id])
  where i.status || '' = 'runnable' and i.hold || '' in ('limit', 'rate') and i.hold_reason is not null
    and (i.concurrency_limit is null
         or exists (select from {schema}.limits l
                    where l.kind = 'concurrency' and l.name = split_part(i.concurrency_limit, ':', 1)
                    offset 0))
    and (i.rate_limit is null
         or exists (select from {schema}.limits l
                    where l.kind = 'rate' and l.name = split_part(i.rate_limit, ':', 1) and l.burst >= i.weight
                    offset 0))
  for no key update of i skip locked
), freed as (
  update {schema}.instances i
  set hold = null, hold_reason = null
  from fitting f
  where i.id = any (array[f.id])
  returning i.queue
), last as (
  select l.hold, l.id
  from looked l
  where (select count(*) from looked) >= $3::integer
  order by l.hold desc, l.id desc
  limit 1
)
select array(select distinct f.queue from freed f) as queues, (select l.hold from last l) as hold,
       (select l.id from last l) as id
