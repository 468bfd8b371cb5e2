-- Claim up to $3 instances of one fair queue: the most urgent priority first, and within it every share in turn, as
-- fair_queues/_turns.sql chooses them. Rows that have no share yet fill what is left.
-- Keeps: as instances/claim.sql.
-- Index: instances_fair: that of the turns, and one probe per turn for its rows; instances_claim for what is left.
-- Locks: as instances/claim.sql.
-- Returns: as instances/claim.sql, in the order in which they are to run: the first of each share, the second of each,
--   and so on. 'missed' also if there may be unvisited shares; 'turn' for each visited priority, with the share (as id)
--   after which it continues: the last that had a turn, whether or not its rows were locked; where all shares had
--   theirs, the first one, so that the rest does not always go to the same share.
with recursive {ctes gate, waiting, turns, portions of fair_queues/_turns}
), shared as materialized (
  select p.number, p.turn, r.*
  from (select * from portions order by priority, number, turn) p
  cross join lateral (
    select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
           i.concurrency_limit is not null or i.rate_limit is not null as is_limited
    from {schema}.instances i
    where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is not null
      and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
      and i.priority = p.priority and i.share = p.share
    order by i.due_at, i.id
    offset p.skipped
    limit p.wanted
    for no key update skip locked
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
  select s.*, row_number() over (partition by s.turn order by s.number, s.due_at, s.id) as nth from shared s
  union all
  select null, null, u.*, null from unshared u
), {ctes judged of instances/claim}
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
  select t.*, t.turn in (select s.turn from shared s) or (select count(*) < $3 from shared) as is_served
  from turns t
  where t.is_share
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
