-- Claim those of up to $3 instances of one queue, most urgent first, that need nothing but a worker, with their states.
-- Nearly every window holds no others. Where it does (a concurrency key, a limit, a version not in $4), claim.sql
--   is asked next, and decides about them.
-- Keeps: as claim.sql. The state is that of the claimed row: one that somebody changed between snapshot and lock has
--   another ctid than the snapshot's, and is not claimed; and whoever writes a state writes the row beside it.
-- Index: instances_claim, read in order until the limit; the primary key of the states.
-- Locks: the rows of the window, no key update; by nobody waited for. No wait for the disk: see claim.sql.
-- Returns: the claimed rows in their order, and at last one without an id: how many others were in the window
--   (`version`), how many rows were missed (`fence`), and the time of the claim.
with candidates as materialized (
  select i.ctid as tid, i.id, i.due_at,
         i.concurrency_key is null and i.concurrency_limit is null and i.rate_limit is null
           and (i.machine || '@' || i.version) = any ($4::text[]) as is_plain
  from stepwell.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select stepwell._may_claim($2))
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
), claimed as (
  update stepwell.instances i
  set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
      updated_at = stepwell.now()
  from candidates c
  join stepwell.instance_data d on d.id = any (array[c.id])
  where i.ctid = c.tid and c.is_plain
  returning i.id, i.fence, i.machine, i.version, i.step, i.attempt, i.crashes, i.tenant, i.key, i.has_inbox, i.awaits,
            i.parent_id, i.round, i.priority, i.await_unit_id, i.due_at, d.state, d.unchecked
)
(select c.id, c.fence, c.machine, c.version, c.step, c.attempt, c.crashes, c.tenant, c.key, c.has_inbox, c.awaits,
        c.parent_id, c.round, c.priority, c.await_unit_id, c.state::text as state, c.unchecked,
        null::timestamptz as claimed_at
 from claimed c
 order by c.priority, c.due_at, c.id)
union all
select null, count(*) filter (where c.is_plain) - (select count(*) from claimed), null,
       count(*) filter (where not c.is_plain), null, null, null, null, null, null, null, null, null, null, null,
       set_config('synchronous_commit', 'off', true), null, pg_catalog.now()
from candidates c
