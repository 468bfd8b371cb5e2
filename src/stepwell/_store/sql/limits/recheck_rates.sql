-- Make the wait queues of a rate limit due now, after the limit has changed. $1: its name. One page: the next $3 parts
-- after the bucket $2; null: from the start, with the limit itself first.
-- Index: the primary key of buckets, no further than the page (chr(59) is the character after the ':' between name and
--   part).
-- Locks: the buckets, in the order of their keys.
-- Returns: the key to continue after; nothing after the last page.
with page as materialized (
  select b.key from {schema}.buckets b where b.key = $1 and $2::text is null
  union all
  (select b.key
   from {schema}.buckets b
   where b.key > coalesce($2::text, $1 || ':') and b.key < $1 || chr(59)
   order by b.key
   limit $3::integer)
), hastened as (
  update {schema}.buckets b
  set next_at = {schema}.now()
  from page p
  where b.key = any (array[p.key])
)
select max(p.key) as last from page p having count(*) >= $3::integer
