-- Claim up to $3 instances of one fair queue: the most urgent priority first, and within it every share in turn. $6 and
-- $7: after which share each priority continues ($8 for a priority that is missing). The first share follows the last.
-- Keeps: as instances/claim.sql, with the same CTEs `judged` and `claimed`. Of n shares that wait at one priority, each
--   gets $3/n rows before any gets more. Rows that have no share yet fill what is left.
-- Index: instances_fair: one probe per turn, and no more turns than wanted rows (but at least 4, as heads may be
--   locked), for the head of a share; one more for the rows behind it. instances_claim for what is left.
-- Locks: as instances/claim.sql.
-- Returns: as instances/claim.sql, in the order in which they are to run: the first of each share, the second of each,
--   and so on. 'missed' also if there may be unvisited shares; 'turn' for each visited priority, with the share (as id)
--   after which it continues: the last that had a turn, whether or not its rows were locked; where all shares had
--   theirs, the first one, so that the rest does not always go to the same share.
with recursive gate as materialized (
  -- Whether the queue may be claimed from, asked once.
  select {schema}._may_claim($2) as is_open
), waiting as not materialized (
  select i.ctid as tid, i.id, i.priority, i.share, i.due_at
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is not null
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
), turns(turn, priority, share, tid, id, start, last) as (
  -- Within a priority the shares after its start, then those up to its start.
  select 0, -32769, null::bigint, null::tid, null::bigint, 0::bigint, 0::bigint
  where (select g.is_open from gate g)
  union all
  select t.turn + 1, n.priority::integer, n.share, n.tid, n.id, n.start, n.last
  from turns t
  cross join lateral (
    (select w.priority, w.share, w.tid, w.id, t.start, t.last
     from waiting w
     where w.priority = t.priority and w.share > t.share and w.share <= t.last
     order by w.share, w.due_at, w.id
     limit 1)
    union all
    (select w.priority, w.share, w.tid, w.id, t.start, t.start
     from waiting w
     where w.priority = t.priority and w.share <= t.start and t.start < t.last
     order by w.share, w.due_at, w.id
     limit 1)
    union all
    (select p.priority, f.share, f.tid, f.id, p.start, f.last
     from (select w.priority, coalesce((select c.share
                                        from unnest($6::smallint[], $7::bigint[]) as c(priority, share)
                                        where c.priority = w.priority), $8::bigint) as start
           from waiting w
           where w.priority > t.priority
           order by w.priority
           limit 1) p
     cross join lateral (
       (select w.share, w.tid, w.id, 9223372036854775807 as last
        from waiting w
        where w.priority = p.priority and w.share > p.start
        order by w.share, w.due_at, w.id
        limit 1)
       union all
       (select w.share, w.tid, w.id, p.start
        from waiting w
        where w.priority = p.priority
        order by w.share, w.due_at, w.id
        limit 1)
       limit 1
     ) f)
    limit 1
  ) n
  where t.turn < greatest($3, 4)
), helpings as materialized (
  -- First the head of each share, then its fair number of rows, then more rows of shares that have them.
  select h.number, t.turn, t.priority, t.share, t.tid, t.id,
         ceil($3::float8 / count(*) over (partition by t.priority, h.number))::integer - 1 as fair
  from turns t cross join generate_series(1, 3) as h(number)
  where t.turn > 0
), shared as materialized (
  select h.number, h.turn, r.*
  from (select * from helpings order by priority, number, turn) h
  cross join lateral (
    select *
    from (select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
                 i.concurrency_limit is not null or i.rate_limit is not null as is_limited
          from {schema}.instances i
          where h.number = 1 and i.ctid = h.tid and i.queue = $2 and i.status = 'runnable' and i.hold is null
            and i.share = h.share and i.priority = h.priority
          for no key update skip locked) head
    union all
    select *
    from (select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
                 i.concurrency_limit is not null or i.rate_limit is not null as is_limited
          from {schema}.instances i
          where h.number > 1 and i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is not null
            and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
            and i.priority = h.priority and i.share = h.share and i.id <> h.id
          order by i.due_at, i.id
          offset case h.number when 2 then 0 else h.fair end
          limit case h.number when 2 then h.fair else $3 end
          for no key update skip locked) others
  ) r
  limit $3
), unshared as materialized (
  -- Rows without a share, from before the queue became fair.
  select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
         i.concurrency_limit is not null or i.rate_limit is not null as is_limited
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
    and (select g.is_open from gate g)
  order by i.priority, i.due_at, i.id
  limit $3 - (select count(*) from shared)
  for no key update skip locked
), candidates as materialized (
  select s.tid, s.id, s.concurrency_key, s.machine, s.version, s.priority, s.due_at, s.is_limited,
         row_number() over (partition by s.turn order by s.number, s.due_at, s.id) as nth, s.turn
  from shared s
  union all
  select u.tid, u.id, u.concurrency_key, u.machine, u.version, u.priority, u.due_at, u.is_limited, null, null
  from unshared u
), judged as materialized (
  select c.*,
         case
           when not (c.machine || '@' || c.version) = any ($4::text[]) then 'foreign'
           when c.concurrency_key is null then case when c.is_limited then 'limited' else 'claimed' end
           when exists (select from {schema}.instances e
                        where e.concurrency_key = c.concurrency_key and e.status = 'executing'
                        offset 0) then 'busy'
           when not c.id in (select distinct on (k.concurrency_key) k.id
                             from candidates k
                             where k.concurrency_key is not null and (k.machine || '@' || k.version) = any ($4::text[])
                             order by k.concurrency_key, k.priority, k.due_at, k.id) then 'busy'
           when c.is_limited then 'limited'
           else 'claimed'
         end as verdict
  from candidates c
  order by c.concurrency_key
), claimed as (
  update {schema}.instances i
  set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
      updated_at = {schema}.now()
  from judged j
  where i.ctid = j.tid and j.verdict = 'claimed'
  returning j.verdict, i.id, i.machine, i.version, i.concurrency_key, i.priority, i.due_at,
            i.fence, i.step, i.attempt, i.crashes, i.tenant, i.key, i.claimed_at,
            i.has_inbox, i.awaits, i.parent_id, i.round, i.await_unit_id, j.nth, j.turn
), served as (
  -- Turns that gave a row; all of them, if fewer rows than wanted were found.
  select t.*, (t.turn in (select s.turn from shared s)) is true or f.is_short as is_served
  from turns t cross join (select count(*) < $3 as is_short from shared) f
  where t.turn > 0
), answers as (
  select c.verdict, c.id, c.machine, c.version, c.concurrency_key,
         c.fence, c.step, c.attempt, c.crashes, c.tenant, c.key,
         case when c.id = (select min(f.id) from claimed f) then c.claimed_at end as claimed_at,
         c.has_inbox, c.awaits, c.parent_id, c.round, c.await_unit_id, c.priority, c.due_at, c.nth, c.turn
  from claimed c
  union all
  select j.verdict, j.id, j.machine, j.version, j.concurrency_key,
         null, null, null, null, null, null, null, null, null, null, null, null, j.priority, j.due_at, j.nth, j.turn
  from judged j
  where j.verdict <> 'claimed'
  union all
  select 'missed', null, null, null, null,
         null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
  from judged j
  having count(*) filter (where j.verdict = 'claimed') > (select count(*) from claimed)
      or (select max(t.turn) from turns t) >= greatest($3, 4) and count(*) < $3
  union all
  select 'turn', (case when bool_and(s.is_served) and max(s.turn) < greatest($3, 4) then min(array[s.turn, s.share])
                       else max(array[s.turn, s.share]) filter (where s.is_served) end)[2],
         null, null, null,
         null, null, null, null, null, null, null, null, null, null, null, null, s.priority, null, null, null
  from served s
  group by s.priority
  having bool_or(s.is_served)
)
select verdict, id, machine, version, concurrency_key, fence, step, attempt, crashes, tenant, key, claimed_at,
       has_inbox, awaits, parent_id, round, priority, await_unit_id
from answers
order by priority, nth, turn, due_at, id
