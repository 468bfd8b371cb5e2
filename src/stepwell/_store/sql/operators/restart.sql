-- Put an instance, whatever its status, at a step of the operator's choice, with another state if one is given.
-- Keeps: the fence grows, so that an outcome in flight is rejected. The key stays (instances_guard), and what it
--   awaited. The inbox stays, except of an instance that was done: that one was to be dropped. At the same step it
--   keeps the await unit with its replies (await_units/close.sql closes the unit if it is open), unless the unit's
--   timeout was to fail the instance; another step could not read those replies. It needs what its new step declares
--   ($5 to $7), or else its own concurrency limit.
-- Index: the primary keys, signals_inbox.
-- Locks: the row.
-- Returns: id, fence, queue, whether it was executing, and the limit of which it held a slot or for which it waited.
with before as materialized (
  select i.id, i.status as was, i.concurrency_limit
  from {schema}.instances i
  where i.id = $1
  for no key update
), again as (
  update {schema}.instances i
  set status = 'runnable', step = $2, attempt = 0, crashes = 0, fence = i.fence + 1,
      dropped_fence = case when i.status = 'executing' then i.fence else i.dropped_fence end,
      worker_id = null, claimed_at = null, slot = null, hold = null, hold_reason = null, deadline = null,
      visit = i.visit + (i.filling_unit_id is not null)::integer, filling_unit_id = null,
      await_unit_id = case
                        when i.step = $2 and not exists (select from {schema}.await_units u
                                                         where u.id = i.await_unit_id and u.status = 'timed_out'
                                                           and u.on_timeout = 'fail'
                                                         offset 0)
                        then i.await_unit_id
                      end,
      children_pending = 0, due_at = {schema}.now(), updated_at = {schema}.now(), finished_at = null,
      concurrency_limit = coalesce($5::text, i.own_limit), rate_limit = $6, weight = $7
  from before b
  where i.id = b.id
  returning i.id, i.fence, i.queue, b.was, b.concurrency_limit as held_limit
), emptied as (
  delete from {schema}.signals s
  using again a
  where s.instance_id = any (array[a.id]) and a.was = 'done'
), stored as (
  update {schema}.instance_data d
  set state = coalesce($3::text::jsonb, d.state), result = null, error = null,
      operated = $4::text::jsonb || jsonb_build_object('error', d.error, 'at', {schema}.now())
  from again a
  where d.id = a.id
)
select id, fence, queue, was = 'executing' as was_executing, held_limit
from again
