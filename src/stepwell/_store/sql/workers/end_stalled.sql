-- End connections of frozen processes that no timeout of Postgres ends in time. Stalled: a statement was parsed and
-- never run, or its result is not read; the session is not idle, and statement_timeout does not count while a message
-- is awaited. Left over: an author's transaction, which may take long (step_transaction/mark.sql), after its worker's
-- lease has ended.
-- Keeps: what has stalled for less than $1 on a worker, $2 on a client, $3 in the engine's COPY or at a client that
--   reads slowly; an author's COPY, and an author's statement without a lock on instances (the author may prepare it
--   and run it later). A left-over session's worker must be dead, as in instances/find_lost.sql (finder $4, lease $5),
--   and is locked, so that it cannot beat meanwhile; or it has no row, and the transaction is older than the snapshot.
--   Only sessions of this role.
-- Index: none; a scan of the sessions and the workers, and of locks for authors' sessions.
-- Locks: workers without a live lease that have a session of a step, skip locked.
-- Returns: the pids of the ended server processes, and which ones stalled.
with steady as materialized (
  -- A row, if the finder has beaten for a whole lease without a gap.
  select
  from {schema}.workers me
  where me.id = $4::bigint and me.beat_at > pg_catalog.now() - $5::interval / 2 and me.beat_at <= clock_timestamp()
    and me.steady_since <= pg_catalog.now() - $5::interval
), ours as materialized (
  -- The engine's sessions; `worker` only while an author's code may run.
  select a.pid, a.application_name, a.state, a.wait_event_type, a.wait_event, a.query, a.query_start, a.xact_start,
         substring(a.application_name from '^{application} step (\d+)$') as worker
  from pg_stat_activity a
  where a.datname = current_database() and a.usename = current_user and a.backend_type = 'client backend'
    and a.application_name ~ '^{application}( worker| step| step \d+)?$' and a.pid <> pg_backend_pid()
), stalled as materialized (
  select a.pid
  from ours a
  where a.state = 'active' and a.wait_event_type = 'Client'
    and (a.worker is null
         or a.query !~* '^\s*copy'
            and exists (select from pg_locks l
                        where l.pid = a.pid and l.relation = '{schema}.instances'::regclass
                          and l.mode in ('RowShareLock', 'RowExclusiveLock')))
    and a.query_start < clock_timestamp() - case
      when a.query ~* '^\s*copy' or a.application_name = '{application}' and a.wait_event = 'ClientWrite' then $3::interval
      when a.application_name = '{application}' then $2::interval
      else $1::interval
    end
), lapsed as materialized (
  select w.id::text as worker
  from {schema}.workers w
  where w.id::text = any (array(select a.worker from ours a))
    and w.lease_until <= pg_catalog.now() and (w.lease_until = '-infinity' or exists (select from steady))
  for no key update of w skip locked
), left_over as materialized (
  -- A worker without a row was forgotten, or inserted after the snapshot; then the transaction is younger, too.
  select a.pid
  from ours a
  where a.worker in (select l.worker from lapsed l)
     or a.worker is not null and a.xact_start < pg_catalog.now() and exists (select from steady)
        and not exists (select from {schema}.workers w where w.id::text = a.worker)
), found as materialized (
  -- Materialized, because otherwise Postgres might end a session before it has checked the worker.
  select e.pid, bool_or(e.is_stalled) as is_stalled
  from (select s.pid, true as is_stalled from stalled s union all select l.pid, false from left_over l) e
  group by e.pid
)
select f.pid, f.is_stalled
from found f
where pg_terminate_backend(f.pid)
