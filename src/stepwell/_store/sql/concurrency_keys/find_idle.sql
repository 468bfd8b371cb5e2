-- Find free keys and limits with free slots behind which rows wait, and rate limits that would never become due: the
-- bucket has no next_at, or is missing, or was refilled more than a minute in the future (the clock went back since).
-- Keeps: normally finds nothing: only rows that another transaction held when the key was freed, and what a cancel in a
--   caller's transaction freed. Admitted rows may not be claimed yet; then too many are admitted, and wait again when
--   their claim finds no slot. One page: of the next $4 keys after $1, limits after $2 and rate limits after $3 with
--   wait queues; null: none.
-- Index: instances_behind_key, instances_limit_queue and instances_rate_queue, one step per distinct key or limit,
--   no further than the page; instances_slot; buckets by key; instances_unlimited, for its first row.
-- Locks: none.
-- Returns: one row: the keys, the limits and the rate limits; of each the one to continue after (null: that was the
--   last page); and whether rows are on hold because a limit does not exist or is too small.
with recursive keyed(key, place) as (
  -- The next keys with wait queues.
  select (select i.concurrency_key from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'key' and i.concurrency_key > $1::text
          order by i.concurrency_key limit 1), 1
  union all
  select (select i.concurrency_key from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'key' and i.concurrency_key > n.key
          order by i.concurrency_key limit 1), n.place + 1
  from keyed n
  where n.key is not null and n.place < $4::integer
), limited(key, place) as (
  -- The next concurrency limits with wait queues.
  select (select i.concurrency_limit from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null and i.concurrency_limit > $2::text
          order by i.concurrency_limit limit 1), 1
  union all
  select (select i.concurrency_limit from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null and i.concurrency_limit > n.key
          order by i.concurrency_limit limit 1), n.place + 1
  from limited n
  where n.key is not null and n.place < $4::integer
), rated(key, place) as (
  -- The next rate limits with wait queues.
  select (select i.rate_limit from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null and i.rate_limit > $3::text
          order by i.rate_limit limit 1), 1
  union all
  select (select i.rate_limit from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null and i.rate_limit > n.key
          order by i.rate_limit limit 1), n.place + 1
  from rated n
  where n.key is not null and n.place < $4::integer
)
select array(select n.key
             from keyed n
             where n.key is not null
               and not exists (select from {schema}.instances e
                               where e.concurrency_key = n.key and e.status = 'executing'
                               offset 0)) as keys,
       array(select n.key
             from limited n
             where n.key is not null
               and (select l.n from {schema}.limits l
                    where l.kind = 'concurrency' and l.name = split_part(n.key, ':', 1))
                   > (select count(*) from {schema}.instances e
                      where e.concurrency_limit = n.key and e.status = 'executing' and e.slot is not null)) as limits,
       array(select n.key
             from rated n
             where n.key is not null
               and not exists (select from {schema}.buckets b
                               where b.key = n.key and b.next_at is not null
                                 and b.refilled_at <= {schema}.now() + interval '1 minute'
                               offset 0)) as rates,
       (select n.key from keyed n where n.place >= $4::integer) as last_key,
       (select n.key from limited n where n.place >= $4::integer) as last_limit,
       (select n.key from rated n where n.place >= $4::integer) as last_rate,
       exists (select from {schema}.instances i
               where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null
               offset 0) as is_put_aside
