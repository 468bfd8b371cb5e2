-- Claim up to $3 instances of one queue, most urgent first. (Of a fair queue: fair_queues/claim.sql.)
-- Keeps: one worker per row (skip locked); one executing row per concurrency key (instances_concurrency_key: one of two
--   concurrent claims fails, and is retried); nothing of a paused queue (_may_claim). A claim need not survive a crash
--   of the server: the row is runnable again then, and the outcome is stale. So it does not wait for the disk, unless
--   it claims a concurrency key. No state is read here: the lock rechecks the newest row, but a joined state would be
--   of the older snapshot.
-- Index: instances_claim, read in order until the limit; a busy key by one probe of instances_concurrency_key.
-- Locks: the rows of the window, no key update, skip locked. Keys enter instances_concurrency_key in their order.
-- Returns: every row of the window with its verdict: 'claimed'; 'busy' (its key is taken); 'foreign' (its version is
--   not in $4); 'limited' (limits/admit.sql decides); 'missed' (it changed between snapshot and lock: claim again).
--   Rows not claimed are unchanged. Versions in $5, which other workers run, are skipped. Only the claimed row with the
--   least id has the time of the claim: it is the same for all, and reading it costs the driver as much as nine texts.
with candidates as materialized (
  select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
         i.concurrency_limit is not null or i.rate_limit is not null as is_limited
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select {schema}._may_claim($2))
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
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
            i.has_inbox, i.awaits, i.parent_id, i.round, i.await_unit_id
), unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
  where not exists (select from judged j where j.verdict = 'claimed' and j.concurrency_key is not null)
), answers as (
  select c.verdict, c.id, c.machine, c.version, c.concurrency_key,
         c.fence, c.step, c.attempt, c.crashes, c.tenant, c.key,
         case when c.id = (select min(f.id) from claimed f) then c.claimed_at end as claimed_at,
         c.has_inbox, c.awaits, c.parent_id, c.round, c.await_unit_id, c.priority, c.due_at
  from claimed c
  union all
  select j.verdict, j.id, j.machine, j.version, j.concurrency_key,
         null, null, null, null, null, null, null, null, null, null, null, null, j.priority, j.due_at
  from judged j
  where j.verdict <> 'claimed'
  union all
  select 'missed', null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
         null, null
  from judged j
  having count(*) filter (where j.verdict = 'claimed') > (select count(*) from claimed)
)
select verdict, id, machine, version, concurrency_key, fence, step, attempt, crashes, tenant, key, claimed_at,
       has_inbox, awaits, parent_id, round, priority, await_unit_id
from answers
where (select count(*) from unsynced) >= 0
order by priority, due_at, id
