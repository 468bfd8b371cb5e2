-- Find keys that nobody holds, and limits with free slots, although rows wait behind them. (What was let go may not be
-- claimed yet; then more may go, and wait again when their claim finds no room.) And lines of rate limits that nobody
-- would ever look at, since their bucket says nothing of when, or is not there.
-- Normally finds nothing; a row that a foreign transaction held when its key was freed is found here, and what a cancel
-- in a caller's transaction made room for.
-- Index: instances_behind_key, instances_in_limit_line and instances_in_rate_line, one step per distinct key or limit;
--   instances_slot; buckets by key.
-- Locks: none. Returns: up to 1,000 keys, limits ('limit') and rate limits ('rate') each, and 'put aside' if anything
--   waits for another limit.
with recursive line(key) as (
  (select i.concurrency_key from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'key'
   order by i.concurrency_key limit 1)
  union all
  select (select i.concurrency_key from stepwell.instances i
          where i.status = 'runnable' and i.hold = 'key' and i.concurrency_key > line.key
          order by i.concurrency_key limit 1)
  from line
  where line.key is not null
), limited(key) as (
  (select i.concurrency_limit from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
   order by i.concurrency_limit limit 1)
  union all
  select (select i.concurrency_limit from stepwell.instances i
          where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
            and i.concurrency_limit > limited.key
          order by i.concurrency_limit limit 1)
  from limited
  where limited.key is not null
), rated(key) as (
  (select i.rate_limit from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
   order by i.rate_limit limit 1)
  union all
  select (select i.rate_limit from stepwell.instances i
          where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
            and i.rate_limit > rated.key
          order by i.rate_limit limit 1)
  from rated
  where rated.key is not null
)
(select 'key' as kind, line.key
 from line
 where line.key is not null
   and not exists (select from stepwell.instances e
                   where e.concurrency_key = line.key and e.status = 'executing'
                   offset 0)
 limit 1000)
union all
(select 'put aside', null
 from stepwell.instances i
 where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null
 limit 1)
union all
(select 'limit', limited.key
 from limited
 where limited.key is not null
   and (select l.n from stepwell.limits l
        where l.kind = 'concurrency' and l.name = split_part(limited.key, ':', 1))
       > (select count(*) from stepwell.instances e
          where e.concurrency_limit = limited.key and e.status = 'executing' and e.slot is not null)
 limit 1000)
union all
(select 'rate', rated.key
 from rated
 where rated.key is not null
   and not exists (select from stepwell.buckets b
                   where b.key = rated.key and b.next_at is not null
                   offset 0)
 limit 1000)
