-- Delete buckets that are full by now and that nobody waits for: one that is not there is full. Those of limits that
-- nobody declares go too. Keeps: a bucket that is debited meanwhile is looked at anew, and stays.
--   Its next_at says whether anybody waits; the line itself is looked at too, before one is deleted.
-- Index: limits by kind and name; instances_in_rate_line, one probe for each bucket that is full (offset 0: never
--   joined). Reads all buckets: few are young, and the rest is deleted here.
-- Locks: what it deletes.
delete from stepwell.buckets b
where b.next_at is null
  and coalesce((select b.tokens + extract(epoch from stepwell.now() - b.refilled_at)::float8
                                  * (l.n / extract(epoch from l.per)::float8) >= l.burst
                from stepwell.limits l
                where l.kind = 'rate' and l.name = split_part(b.key, ':', 1)), true)
  and not exists (select from stepwell.instances i
                  where i.rate_limit = b.key and i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
                  offset 0)
