-- Make the wait queues of rate limits in which rows of queue $1 stand due now: the queue is claimed from again. One
-- page: the next $3 buckets after the key $2.
-- Index: the primary key of buckets, no further than the page; instances_rate_queue, one probe per bucket with a wait
--   queue.
-- Locks: the buckets, skip locked: the transaction that holds one is reading that wait queue, or takes its tokens.
-- Returns: the key to continue after; nothing after the last page.
with looked as materialized (
  select b.key, b.next_at
  from {schema}.buckets b
  where b.key > $2
  order by b.key
  limit $3::integer
), waited_for as materialized (
  select b.key
  from looked l
  join {schema}.buckets b on b.key = any (array[l.key])
  where l.next_at > {schema}.now() and b.next_at > {schema}.now()
    and exists (select from {schema}.instances i
                where i.rate_limit = l.key and i.queue = $1 and i.status = 'runnable' and i.hold = 'rate'
                  and i.hold_reason is null
                offset 0)
  for no key update of b skip locked
), hastened as (
  update {schema}.buckets b
  set next_at = {schema}.now()
  from waited_for w
  where b.key = any (array[w.key])
)
select max(l.key) as last from looked l having count(*) >= $3::integer
