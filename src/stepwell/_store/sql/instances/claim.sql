-- Claim up to $3 instances of one queue, most urgent first. (Of a fair queue: shares/claim.sql.)
-- Keeps: a row is claimed by one worker only (row lock, skip locked); one executing row per concurrency key
--   (instances_concurrency_key: of two claims at once one fails whole, and is retried).
--   Nothing of a paused queue is claimed (_may_claim looks with a snapshot of its own, once).
--   A claim need not survive a crash of the server: the row is runnable again then, and what the worker makes of it is
--   stale. So nobody waits for the disk, unless a concurrency key is claimed, which must stay taken.
-- Index: instances_claim, read in order until the limit; the busy key by one probe of instances_concurrency_key.
-- Locks: the rows of the window, no key update; by nobody waited for. Keys enter instances_concurrency_key in their
--   order, so that two claims of the same keys wait for one another in one direction only.
-- Returns: every row of the window with its verdict: 'claimed'; 'busy' (its key is taken); 'foreign' (its machine
--   and version are not in $4); 'limited' (limits/admit.sql decides about it); 'missed' (somebody changed it between
--   snapshot and lock, so its ctid is not the snapshot's: claim it the next time). Rows not claimed are unchanged.
--   Versions in $5, which other workers run, are passed over, so that their backlog does not fill our window. The time
--   of the claim is told once, by the claimed row with the least id: it is the same for all, and reading a time costs
--   the driver as much as nine texts.
-- The state is not read here: skip locked rechecks the newest hot row, a joined row would come from the older
-- snapshot of this statement, and a step would run with the state before it.
with candidates as materialized (
  select i.ctid as tid, i.id, i.concurrency_key, i.machine, i.version, i.priority, i.due_at,
         i.concurrency_limit is not null or i.rate_limit is not null as is_limited
  from stepwell.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select stepwell._may_claim($2))
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
), judged as materialized (
  select c.*,
         case
           when not (c.machine || '@' || c.version) = any ($4::text[]) then 'foreign'
           when c.concurrency_key is null then case when c.is_limited then 'limited' else 'claimed' end
           when exists (select from stepwell.instances e
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
  update stepwell.instances i
  set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
      updated_at = stepwell.now()
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
