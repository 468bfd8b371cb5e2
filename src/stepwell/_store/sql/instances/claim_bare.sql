-- Claim up to $3 instances of one queue, most urgent first, if all of them need nothing but a worker: nearly always.
-- If one has a concurrency key or a limit, or is of another version than those in $4, all is left to claim.sql: that
-- one would be passed by what is less urgent.
-- Keeps: what claim.sql does: a row is claimed by one worker only (row lock, skip locked; one that changed between
--   snapshot and lock has another ctid, and is missed), nothing of a paused queue is claimed, and nobody waits for the
--   disk: after a crash of the server the row is runnable again, and what the worker makes of it is stale.
-- Index: instances_claim, read in order until the limit.
-- Locks: the rows of the window, no key update; by nobody waited for.
-- Returns: the rows that are claimed, in the order in which they lie (to go to all of them at once costs a tenth less
--   than to each in turn), each with how many were looked at: if those are more, the others were missed. No row: there
--   is nothing, or it is for claim.sql. The time of the claim is the same for all, and as the server has it
--   inside (microseconds since 2000): the driver would make a time of it for every row. Who asks puts them into
--   the order of the index, by priority, due_at and id.
with candidates as materialized (
  select i.ctid as tid,
         i.concurrency_key is null and i.concurrency_limit is null and i.rate_limit is null
           and (i.machine || '@' || i.version) = any ($4::text[]) as is_bare
  from stepwell.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select stepwell._may_claim($2))
    and (select set_config('synchronous_commit', 'off', true)) = 'off'
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
)
update stepwell.instances i
set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
    updated_at = stepwell.now()
where i.ctid = any (array(select c.tid from candidates c)) and (select bool_and(k.is_bare) from candidates k)
returning (select count(*) from candidates)::integer as looked_at, timestamptz_send(i.claimed_at) as claimed_at,
          i.id, i.fence, i.machine, i.version, i.step, i.attempt, i.crashes, i.tenant, i.key, i.has_inbox, i.awaits,
          i.parent_id, i.round, i.priority, i.await_unit_id, date_part('epoch', i.due_at) as due_at
