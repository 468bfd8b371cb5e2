-- Let the lines of rate limits be looked at now, also those whose bucket is not there: it is full. Run under
-- limits/lock_rates.sql; $1: the rate limits.
-- Keeps: the tokens of a bucket that is there. Index: buckets by key. Locks: the buckets, in the order of their keys.
insert into stepwell.buckets as b (key, tokens, refilled_at, next_at)
select g.key, l.burst, stepwell.now(), stepwell.now()
from unnest($1::text[]) as g(key)
join stepwell.limits l on l.kind = 'rate' and l.name = any (array[split_part(g.key, ':', 1)])
order by g.key collate "C"
on conflict (key) do update
set next_at = excluded.next_at
