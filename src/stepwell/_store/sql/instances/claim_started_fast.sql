-- Claim up to $3 instances of one queue as instances/claim_fast.sql does, for a worker with all slots free: they start
-- at once. So this also does what workers/mark_started.sql does, and reads all that they start with, in one round trip.
-- Keeps: what those keep. No other claim of the worker is waiting. A crash suspect does not start with others: such a
--   window is left to instances/claim.sql. All is read as of the snapshot, which is older than the locks: right,
--   because a write of a state, an inbox or a unit also writes the instance's row, and a row written since is missed.
--   Large values are not read here: one that cannot be sent would keep all others from being claimed.
-- Index: instances_claim, read in order until the limit; the primary keys; signals_inbox, interactions_item.
-- Locks: the rows of the window, no key update, skip locked; the worker's row.
-- Returns: the claimed rows, most urgent first, as instances/claim_fast.sql; whether the worker exists; their states;
--   and as JSON, if they are small, their inboxes and the units that have one interaction.
with candidates as materialized (
  select i.ctid as tid,
         i.concurrency_key is null and i.concurrency_limit is null and i.rate_limit is null and i.crashes = 0
           and (i.machine || '@' || i.version) = any ($4::text[]) as is_bare
  from {schema}.instances i
  where i.queue = $2 and i.status = 'runnable' and i.hold is null and i.share is null
    and (select {schema}._may_claim($2))
    and (select set_config('synchronous_commit', 'off', true)) = 'off'
    and ($5::text[] = '{}' or not (i.machine || '@' || i.version) = any ($5::text[]))
  order by i.priority, i.due_at, i.id
  limit $3
  for no key update skip locked
), claimed as (
  update {schema}.instances i
  set status = 'executing', worker_id = $1, claimed_at = pg_catalog.now(), fence = i.fence + 1,
      updated_at = {schema}.now()
  from candidates c
  where i.ctid = c.tid and (select bool_and(k.is_bare) from candidates k)
  returning i.claimed_at, i.id, i.fence, i.machine, i.version, i.step, i.attempt, i.crashes, i.tenant, i.key,
            i.has_inbox, i.awaits, i.parent_id, i.round, i.priority, i.await_unit_id
), noted as (
  update {schema}.workers w
  set begun_at = case when w.begun_at <= clock_timestamp() then greatest(w.begun_at, pg_catalog.now())
                      else pg_catalog.now() end,
      waiting = '{}'
  where w.id = $1 and exists (select from claimed)
  returning w.id
)
select (select count(*) from candidates)::integer as looked_at, timestamptz_send(c.claimed_at) as claimed_at,
       c.id, c.fence, c.machine, c.version, c.step, c.attempt, c.crashes, c.tenant, c.key, c.has_inbox, c.awaits,
       c.parent_id, c.round, c.priority, c.await_unit_id,
       exists (select from noted) as is_held, d.state::text as state, d.unchecked,
       case when c.has_inbox then (
         select coalesce(json_agg(json_build_array(s.id, s.name, s.payload::text, s.dedup_key, s.sent_at)), '[]')
         from (select * from {schema}.signals s where s.instance_id = c.id and not s.consumed order by s.id limit 33) s
         having count(*) < 33 and coalesce(sum(pg_column_size(s.payload)), 0) < 100000
       ) end as inbox,
       case when c.await_unit_id is not null then (
         select json_build_array(u.id, u.status, true, u.on_timeout, u.step, t.reference::text, json_build_array(
                  json_build_array(q.id, q.item, q.status, q.reply::text, q.actor, q.finished_at, q.error)))
         from {schema}.await_units u
         join {schema}.reply_types t on t.id = any (array[u.reply_type])
         join {schema}.interactions q on q.unit_id = any (array[u.id])
         where u.id = any (array[c.await_unit_id]) and u."window" is null
           and coalesce(pg_column_size(q.reply), 0) < 100000
       ) end as unit
from claimed c
join {schema}.instance_data d on d.id = any (array[c.id])
