-- The shares of a fair queue that have their turn in a claim of $3 rows, and how many rows each may take.
-- Keeps: within a priority the shares after its start ($6 and $7 by priority, $8 where it is missing), then those up to
--   it. Of n shares that wait at one priority, each gets $3/n rows before any gets more.
-- Index: instances_fair: one probe per turn, and no more turns than wanted rows, but at least 4, as rows may be locked.
-- Locks: those of _may_claim.
with recursive gate as materialized (
  -- Whether the queue may be claimed from, asked once.
  select {schema}._may_claim($2) as is_open
), waiting as not materialized (
  select i.priority, i.share
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is not null
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
), turns(turn, is_share, priority, share, start, last) as (
  -- A priority with its start, then its shares: the next up to the end, the next up to the start, the next priority.
  select 0, false, -32769, 0::bigint, 0::bigint, null::bigint
  where (select g.is_open from gate g)
  union all
  select t.turn + n.is_share::integer, n.*
  from turns t
  cross join lateral (
    (select true as is_share, w.priority::integer, w.share, t.start, t.last
     from waiting w
     where w.priority = t.priority and w.share > t.share and w.share <= coalesce(t.last, 9223372036854775807)
     order by w.share
     limit 1)
    union all
    (select true, w.priority::integer, w.share, t.start, t.start
     from waiting w
     where w.priority = t.priority and t.last is null and w.share <= t.start
     order by w.share
     limit 1)
    union all
    (select false, w.priority::integer, s.start, s.start, null
     from waiting w
     cross join lateral (
       select coalesce((select g.share
                        from unnest($6::smallint[], $7::bigint[]) as g(priority, share)
                        where g.priority = w.priority), $8::bigint) as start
     ) s
     where w.priority > t.priority
     order by w.priority
     limit 1)
    limit 1
  ) n
  where t.turn < greatest($3, 4)
), portions as materialized (
  -- First one row of each share, then the rest of its part of the wanted rows, then what the others leave.
  select p.number, t.turn, t.priority, t.share,
         case p.number when 1 then 0 when 2 then 1 else t.part end as skipped,
         case p.number when 1 then 1 when 2 then t.part - 1 else $3 end as wanted
  from (select s.*, ceil($3::float8 / count(*) over (partition by s.priority))::integer as part
        from turns s
        where s.is_share) t
  cross join generate_series(1, 3) as p(number)
  where p.number < 3 or t.part < $3
)
