-- Let the lines of rate limits in which rows of queue $1 stand be looked at now: the queue is claimed from again.
-- Index: buckets_next, each bucket that somebody waits for; instances_in_rate_line, one probe for each of them
--   (offset 0: never joined).
-- Locks: the buckets, skip locked: who holds one is just looking at that line, or takes its tokens.
with lines as materialized (
  select b.key
  from stepwell.buckets b
  where b.next_at > stepwell.now()
    and exists (select from stepwell.instances i
                where i.rate_limit = b.key and i.queue = $1 and i.status = 'runnable' and i.hold = 'rate'
                  and i.hold_reason is null
                offset 0)
  for no key update skip locked
)
update stepwell.buckets b
set next_at = stepwell.now()
from lines l
where b.key = any (array[l.key])
