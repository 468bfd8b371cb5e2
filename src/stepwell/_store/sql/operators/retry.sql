-- Run an instance again at the step where it failed or was cancelled; or now, if it waits for its time or for code.
-- One that was cancelled while it awaited signals awaits them again, until the same deadline.
-- Keeps: the key (instances_guard refuses it if another instance holds it by now); a join once counted stays counted.
-- Index: the primary key. Locks: the row. Returns: id and queue; nothing if there is nothing to retry.
with again as (
  update stepwell.instances i
  set status = case when i.status = 'cancelled' and d.operated ->> 'was' = 'awaiting_signal' and i.awaits is not null
                    then 'awaiting_signal' else 'runnable' end,
      deadline = case when i.status = 'cancelled' and d.operated ->> 'was' = 'awaiting_signal'
                      then (d.operated ->> 'deadline')::timestamptz end,
      hold = null, hold_reason = null, due_at = stepwell.now(), updated_at = stepwell.now(),
      attempt = case when i.status = 'runnable' then i.attempt else 0 end,
      crashes = 0, finished_at = null, fence = i.fence + 1
  from stepwell.instance_data d
  where i.id = $1 and d.id = i.id
    and (i.status in ('failed', 'cancelled') or i.status = 'runnable' and i.hold in ('due', 'version', 'unfit'))
  returning i.id, i.queue
), stored as (
  update stepwell.instance_data d
  set operated = $2::text::jsonb || jsonb_build_object('error', d.error, 'at', stepwell.now()), error = null
  from again a
  where d.id = a.id
)
select id, queue
from again
