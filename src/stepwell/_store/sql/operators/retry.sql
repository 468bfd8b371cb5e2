-- Run an instance again at the step where it failed or was cancelled; or now, if it waits for its due time or for code.
-- Keeps: an instance cancelled while it awaited signals awaits them again, until the same deadline; one that awaited
--   children of which some live awaits those: the ends of the others were counted meanwhile. The key: instances_guard
--   refuses the retry if another instance holds it by now. An end that was counted at a parent stays counted.
-- Index: the primary key.
-- Locks: the row.
-- Returns: id and queue; nothing if there is nothing to retry.
with again as (
  update {schema}.instances i
  set status = case when i.status = 'cancelled' and d.operated ->> 'was' = 'awaiting_signal' and i.awaits is not null
                    then 'awaiting_signal'
                    when i.status = 'cancelled' and d.operated ->> 'was' = 'awaiting_children'
                         and i.children_pending > 0
                    then 'awaiting_children' else 'runnable' end,
      deadline = case when i.status = 'cancelled' and d.operated ->> 'was' = 'awaiting_signal'
                      then (d.operated ->> 'deadline')::timestamptz end,
      hold = null, hold_reason = null, due_at = {schema}.now(), updated_at = {schema}.now(),
      attempt = case when i.status = 'runnable' then i.attempt else 0 end,
      crashes = 0, claimed_at = null, finished_at = null, fence = i.fence + 1
  from {schema}.instance_data d
  where i.id = $1 and d.id = i.id
    and (i.status in ('failed', 'cancelled') or i.status = 'runnable' and i.hold in ('due', 'version', 'unfit'))
  returning i.id, i.queue
), stored as (
  update {schema}.instance_data d
  set operated = $2::text::jsonb || jsonb_build_object('error', d.error, 'at', {schema}.now()), error = null
  from again a
  where d.id = a.id
)
select id, queue
from again
