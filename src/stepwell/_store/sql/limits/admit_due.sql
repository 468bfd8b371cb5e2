-- Admit the first rows of wait queues, as far as there are tokens for their weights, and compute when the next one may
-- be admitted. Run under limits/lock_rates.sql.
-- Keeps: the order of the wait queue, among the queues that are claimed from, if there are any: the backlog of a paused
--   or unserved queue blocks no other. limits/admit.sql takes the tokens, not this statement, so the next row waits for
--   its own tokens and for those of all admitted rows. A row heavier than the bucket is admitted too; its claim puts it
--   on hold with the reason.
-- Index: buckets by key; instances_rate_queue, one step per queue, and no more rows of a queue than there are tokens
--   (a weight is at least 1).
-- Locks: the rows, skip locked (locked ones are tried again soon); the buckets.
-- Returns: one row: the queues of the admitted rows, and the seconds until the next row.
with recursive buckets as materialized (
  -- The due buckets with their tokens as of now.
  select b.key, l.burst, l.n / extract(epoch from l.per)::float8 as per_second,
         least(l.burst, b.tokens + greatest(extract(epoch from {schema}.now() - b.refilled_at)::float8, 0)
                                   * (l.n / extract(epoch from l.per)::float8)) as tokens
  from unnest($1::text[]) as g(key)
  join {schema}.buckets b on b.key = any (array[g.key])
  left join {schema}.limits l on l.kind = 'rate' and l.name = any (array[split_part(b.key, ':', 1)])
  where b.next_at <= {schema}.now()
), {ctes queues of limits/read_candidates}
), offered as materialized (
  -- The first rows of each queue, and whether they may be admitted.
  select n.id, n.weight, n.priority, n.due_at, q.key, q.burst, q.tokens,
         s.is_served or not bool_or(s.is_served) over (partition by q.key) as may_go
  from queues q
  cross join lateral (
    select exists (select from {schema}.workers w where w.lease_until > pg_catalog.now() and w.queues ? q.queue)
           and not exists (select from {schema}.queues p where p.name = q.queue and p.paused_at is not null)
             as is_served
    offset 0
  ) s
  cross join lateral (
    select i.id, i.priority, i.due_at, i.weight
    from {schema}.instances i
    where i.rate_limit = q.key and i.queue = q.queue and i.status = 'runnable' and i.hold = 'rate'
      and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit least(floor(q.tokens)::integer, 1000) + 1
  ) n
  where q.queue <> '' and q.burst is not null
), going as materialized (
  -- The first rows, as long as the tokens suffice for their weights.
  select i.id, t.key, t.weight
  from (select o.*, sum(case when o.weight <= o.burst then o.weight else 0 end)
                      over (partition by o.key order by o.priority, o.due_at, o.id) as total
        from offered o
        where o.may_go) t
  join {schema}.instances i on i.id = any (array[t.id])
  where t.total <= t.tokens and i.hold = 'rate' and i.status || '' = 'runnable'
  for no key update of i skip locked
), freed as (
  update {schema}.instances i
  set hold = null
  from going g
  where i.id = any (array[g.id])
  returning i.queue
), waits as materialized (
  -- The seconds until each bucket can admit its next row.
  select b.key,
         least(case
                 when h.weight is not null
                   then greatest((coalesce((select sum(g.weight) from going g where g.key = b.key), 0)
                                  + least(h.weight, b.burst) - b.tokens) / b.per_second, 0.02)
                 when exists (select from {schema}.instances i
                              where i.rate_limit = b.key and i.status = 'runnable' and i.hold = 'rate'
                                and i.hold_reason is null and i.id not in (select g.id from going g)
                              offset 0)
                   then least(greatest(1 / b.per_second, 0.02), 60)
               end, 3153600000) as wait
  from buckets b
  left join lateral (
    select o.weight
    from offered o
    where o.key = b.key and o.may_go and o.id not in (select g.id from going g)
    order by o.priority, o.due_at, o.id
    limit 1
  ) h on true
), noted as (
  update {schema}.buckets b
  set next_at = {schema}.now() + make_interval(secs => w.wait)
  from waits w
  where b.key = any (array[w.key])
)
select array(select f.queue from freed f) as queues, (select min(w.wait) from waits w)::float8 as wait
