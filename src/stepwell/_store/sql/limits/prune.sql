-- Delete buckets that are full by now and that nobody waits for: one that is not there is full. Those of limits that
-- nobody declares go too. Keeps: a bucket that is debited meanwhile is looked at anew, and stays.
-- Index: limits by kind and name. Reads all buckets: few are young, and the rest is deleted here.
-- Locks: what it deletes.
delete from stepwell.buckets b
where b.next_at is null
  and coalesce((select b.tokens + extract(epoch from stepwell.now() - b.refilled_at)::float8
                                  * (l.n / extract(epoch from l.per)::float8) >= l.burst
                from stepwell.limits l
                where l.kind = 'rate' and l.name = split_part(b.key, ':', 1)), true)
