-- Claim up to $3 instances of one queue, most urgent first, if all of them need only a worker: nearly always. If one
-- has a concurrency key or a limit, or a version not in $4, all is left to instances/claim.sql: less urgent rows would
-- overtake it.
-- Keeps: as instances/claim.sql: one worker per row (a row that changed between snapshot and lock has another ctid, and
--   is missed), nothing of a paused queue, no wait for the disk.
-- Index: instances_claim, read in order until the limit. See docs/internals/sql-plans.md.
-- Locks: the rows of the window, no key update, skip locked.
-- Returns: the claimed rows, in the order in which they lie on disk (the caller sorts by priority, due_at and id), each
--   with the number of rows in the window: if that is larger, the others were missed. No row: nothing, or left to
--   instances/claim.sql. The time of the claim is in the server's form (microseconds since 2000), as the driver would
--   make an object for each row.
with candidates as materialized (
  select i.ctid as tid,
         i.concurrency_key is null and i.concurrency_limit is null and i.rate_limit is null
           and (i.machine || '@' || i.version) = any ($4::text[]) as is_bare
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select {schema}._may_claim($2))
    and (select set_config('synchronous_commit', 'off', true)) = 'off'
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
)
update {schema}.instances i
set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
    updated_at = {schema}.now()
where i.ctid = any (array(select c.tid from candidates c)) and (select bool_and(k.is_bare) from candidates k)
returning (select count(*) from candidates)::integer as looked_at, timestamptz_send(i.claimed_at) as claimed_at,
          i.id, i.fence, i.machine, i.version, i.step, i.attempt, i.crashes, i.tenant, i.key, i.has_inbox, i.awaits,
          i.parent_id, i.round, i.priority, i.await_unit_id, date_part('epoch', i.due_at) as due_at
