-- Return rows of workers without a live lease to their queues; fail those that have crashed too often.
-- Keeps: attempt and crashes grow only where the step had started (workers.begun_at, except workers.waiting; a
--   forgotten worker had no claims then, so none of its later claims has started). A step that a drain cut off counts
--   as an attempt, not as a crash (workers.has_left). At $2 crashes in a row of one step the instance fails instead of
--   killing the next worker. Dead claims are found on the snapshot, and then locked by id and fence: a join with
--   workers in the locking query would recheck a row claimed anew against the dead worker's row, and take it from the
--   live one. $3: authors' names of the steps that the engine has named, {name@version: {step: words}}.
-- Index: the primary key, driven from the ids. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked. Writes side rows only for what it failed.
-- Returns: the reaped rows: id, status, queue, whether a client waits, whether the step had started, what it is and its
--   worker, why it failed, the parent at which its end is counted, and the limit with a free slot.
with dead as materialized (
  -- The claims of workers without a live lease, as of the snapshot.
  select i.id, i.fence, coalesce(w.has_left, false) as has_left,
         coalesce(i.claimed_at <= w.begun_at and not i.id = any (w.waiting), false) as begun
  from {schema}.instances i
  left join {schema}.workers w on w.id = any (array[i.worker_id])
  where i.id = any ($1::bigint[]) and i.status || '' = 'executing'
    and (w.id is null or w.lease_until <= pg_catalog.now())
), lost as materialized (
  -- The same claims, locked.
  select d.id, i.worker_id, i.joined as was_joined, d.begun, d.begun and not d.has_left as crashed
  from dead d join {schema}.instances i on i.id = any (array[d.id])
  where i.fence = d.fence and i.status || '' = 'executing'
  for no key update of i skip locked
), reaped as (
  update {schema}.instances i
  set status = case when l.crashed and i.crashes + 1 >= $2 then 'failed' else 'runnable' end,
      finished_at = case when l.crashed and i.crashes + 1 >= $2 then {schema}.now() end,
      joined = i.joined or (i.parent_id is not null and l.crashed and i.crashes + 1 >= $2),
      attempt = i.attempt + l.begun::integer,
      crashes = i.crashes + l.crashed::integer,
      dropped_fence = i.fence,
      worker_id = null,
      claimed_at = case when l.crashed and i.crashes + 1 >= $2 then i.claimed_at end,
      slot = null,
      visit = i.visit + (i.filling_unit_id is not null and l.crashed and i.crashes + 1 >= $2)::integer,
      filling_unit_id = case when not (l.crashed and i.crashes + 1 >= $2) then i.filling_unit_id end,
      updated_at = {schema}.now()
  from lost l
  where i.id = any (array[l.id])
  returning i.id, i.status, i.queue, i.watched, l.begun, i.machine, i.version, i.step, i.tenant, i.key, i.attempt,
            l.worker_id, i.parent_id,
            case when i.status = 'failed'
                 then format('step %L%s ended its worker %s times in a row (max_crashes)', i.step,
                             ' (' || ($3::jsonb #>> array[concat(i.machine, '@', i.version), i.step]) || ')', i.crashes)
            end as failure,
            case when i.joined and not l.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not l.was_joined then i.continues_unit_id end as continues,
            i.concurrency_limit
), stored as (
  update {schema}.instance_data d
  set error = jsonb_build_object('type', 'CrashLoop', 'message', r.failure, 'traceback', null)
  from reaped r
  where d.id = any (array[r.id]) and r.status = 'failed'
)
select id, status, queue, watched, begun, machine, version, step, tenant, key, attempt, worker_id, parent_id, failure,
       joins, parent_round, continues, concurrency_limit
from reaped
