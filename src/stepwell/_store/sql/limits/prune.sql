-- Delete buckets that are full and have no wait queue: a missing bucket is full. Those of limits that no code declares
-- are deleted too. One page: of the next $2 buckets after the key $1.
-- Keeps: a bucket that is debited meanwhile is judged anew, and stays. Its next_at tells whether rows wait; the wait
--   queue itself is read too, before the bucket is deleted.
-- Index: the primary key of buckets, no further than the page; limits by kind and name; instances_rate_queue, one
--   probe per full bucket. All pages together read all buckets: few are young, and the rest is deleted here.
-- Locks: the deleted rows.
-- Returns: the key to continue after; nothing after the last page.
with looked as materialized (
  select b.key, b.next_at
  from {schema}.buckets b
  where b.key > $1
  order by b.key
  limit $2::integer
), pruned as (
  delete from {schema}.buckets b
  using looked l
  where b.key = any (array[l.key]) and l.next_at is null and b.next_at is null
    and coalesce((select b.tokens + extract(epoch from {schema}.now() - b.refilled_at)::float8
                                    * (r.n / extract(epoch from r.per)::float8) >= r.burst
                  from {schema}.limits r
                  where r.kind = 'rate' and r.name = split_part(b.key, ':', 1)), true)
    and not exists (select from {schema}.instances i
                    where i.rate_limit = b.key and i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
                    offset 0)
)
select max(l.key) as last from looked l having count(*) >= $2::integer
