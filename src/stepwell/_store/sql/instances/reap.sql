-- Return rows of workers without a live lease to their queues; end those that have crashed too often.
-- Keeps: attempt and crashes grow only where the step had begun (workers.begun_at, less workers.waiting; a worker that
--   was forgotten carried nothing then, so what it has claimed since has not begun); a step that
--   a drain cut off counts as an attempt, not as a crash (workers.has_left);
--   at $2 crashes in a row of one step the instance fails instead of killing the next worker.
--   Who is dead is decided on the snapshot, and then the very same claims (id and fence) are locked. Joined to its
--   worker in the locking query, a row claimed anew meanwhile would be rechecked against the dead worker's row, find
--   that it does not fit, and be taken from the live one for having none.
-- Index: the primary key, driven from the ids (|| '' and any (array[…]): see commit.sql).
-- Locks: the rows, skip locked. Writes side rows only for what it failed.
-- Returns: what was reaped: id, status, queue, whether a client waits, whether the step had begun, what it is and
--   from whom it was taken, why it failed, the parent at which its end is to be counted, and whose slot is free.
with dead as materialized (
  select i.id, i.fence, coalesce(w.has_left, false) as has_left,
         coalesce(i.claimed_at <= w.begun_at and not i.id = any (w.waiting), false) as begun
  from stepwell.instances i
  left join stepwell.workers w on w.id = any (array[i.worker_id])
  where i.id = any ($1::bigint[]) and i.status || '' = 'executing'
    and (w.id is null or w.lease_until <= pg_catalog.now())
), lost as materialized (
  select d.id, i.worker_id, i.joined as was_joined, d.begun, d.begun and not d.has_left as crashed
  from dead d join stepwell.instances i on i.id = any (array[d.id])
  where i.fence = d.fence and i.status || '' = 'executing'
  for no key update of i skip locked
), reaped as (
  update stepwell.instances i
  set status = case when l.crashed and i.crashes + 1 >= $2 then 'failed' else 'runnable' end,
      finished_at = case when l.crashed and i.crashes + 1 >= $2 then stepwell.now() end,
      joined = i.joined or (i.parent_id is not null and l.crashed and i.crashes + 1 >= $2),
      attempt = i.attempt + l.begun::integer,
      crashes = i.crashes + l.crashed::integer,
      worker_id = null,
      claimed_at = null,
      slot = null,
      visit = i.visit + (i.filling_unit_id is not null and l.crashed and i.crashes + 1 >= $2)::integer,
      filling_unit_id = case when not (l.crashed and i.crashes + 1 >= $2) then i.filling_unit_id end,
      updated_at = stepwell.now()
  from lost l
  where i.id = any (array[l.id])
  returning i.id, i.status, i.queue, i.watched, l.begun, i.machine, i.version, i.step, i.tenant, i.key, i.attempt,
            l.worker_id, i.parent_id,
            case when i.status = 'failed'
                 then format('step %L ended its worker %s times in a row (max_crashes)', i.step, i.crashes)
            end as failure,
            case when i.joined and not l.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not l.was_joined then i.continues_unit_id end as continues,
            i.concurrency_limit
), stored as (
  update stepwell.instance_data d
  set error = jsonb_build_object('type', 'CrashLoop', 'message', r.failure, 'traceback', null)
  from reaped r
  where d.id = any (array[r.id]) and r.status = 'failed'
)
select id, status, queue, watched, begun, machine, version, step, tenant, key, attempt, worker_id, parent_id, failure,
       joins, parent_round, continues, concurrency_limit
from reaped
