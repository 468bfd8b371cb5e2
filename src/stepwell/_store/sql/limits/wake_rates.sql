-- Make the wait queues of rate limits due now, also where the bucket is missing, which means full. Run under
-- limits/lock_rates.sql; $1: the rate limits.
-- Keeps: the tokens of an existing bucket. If it was refilled more than a minute in the future (the clock went back
--   since), it refills from now on.
-- Index: buckets by key.
-- Locks: the buckets, in the order of their keys.
insert into {schema}.buckets as b (key, tokens, refilled_at, next_at)
select g.key, l.burst, {schema}.now(), {schema}.now()
from unnest($1::text[]) as g(key)
join {schema}.limits l on l.kind = 'rate' and l.name = any (array[split_part(g.key, ':', 1)])
order by g.key collate "C"
on conflict (key) do update
set next_at = excluded.next_at,
    refilled_at = case when b.refilled_at > excluded.refilled_at + interval '1 minute' then excluded.refilled_at
                       else b.refilled_at end
