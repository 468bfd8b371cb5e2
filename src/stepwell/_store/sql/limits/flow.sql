-- Let the heads of lines go for whose weights there are tokens by now, and say when the next one may. Run under
-- limits/lock_rates.sql. Keeps: the order of the line; tokens are taken by limits/admit.sql, not here, so the next one
--   waits for its own tokens and for those of all that were let go. What is heavier than the bucket goes too, and is
--   put aside with the reason.
-- Index: buckets by key, instances_in_rate_line in its order; weights are 1 at least, so no more rows are read than
--   there are tokens. Locks: the rows, skip locked (what others hold is looked at again in a moment); the buckets.
-- Returns: one row: the queues of those let go, and the seconds to the next one.
with lines as materialized (
  select b.key, l.burst, l.n / extract(epoch from l.per)::float8 as per_second,
         least(l.burst, b.tokens + greatest(extract(epoch from stepwell.now() - b.refilled_at)::float8, 0)
                                   * (l.n / extract(epoch from l.per)::float8)) as tokens
  from unnest($1::text[]) as g(key)
  join stepwell.buckets b on b.key = any (array[g.key])
  left join stepwell.limits l on l.kind = 'rate' and l.name = any (array[split_part(b.key, ':', 1)])
  where b.next_at <= stepwell.now()
), going as materialized (
  select n.id, l.key, n.weight
  from lines l
  cross join lateral (
    select h.id, h.weight,
           sum(case when h.weight <= l.burst then h.weight else 0 end)
             over (order by h.priority, h.due_at, h.id) as total
    from (select i.id, i.priority, i.due_at, i.weight
          from stepwell.instances i
          where i.rate_limit = l.key and i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
          order by i.priority, i.due_at, i.id
          limit least(floor(l.tokens)::integer, 1000) + 1
          for no key update skip locked) h
  ) n
  where n.total <= l.tokens
), freed as (
  update stepwell.instances i
  set hold = null
  from going g
  where i.id = any (array[g.id])
  returning i.queue
), waits as materialized (
  select l.key,
         case when h.weight is not null and l.burst is not null then
           least(greatest((coalesce((select sum(g.weight) from going g where g.key = l.key), 0)
                           + least(h.weight, l.burst) - l.tokens) / l.per_second, 0.02), 3153600000) end as wait
  from lines l
  left join lateral (
    select i.weight
    from stepwell.instances i
    where i.rate_limit = l.key and i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
      and i.id not in (select g.id from going g)
    order by i.priority, i.due_at, i.id
    limit 1
  ) h on true
), noted as (
  update stepwell.buckets b
  set next_at = stepwell.now() + make_interval(secs => w.wait)
  from waits w
  where b.key = any (array[w.key])
)
select array(select f.queue from freed f) as queues, (select min(w.wait) from waits w)::float8 as wait
