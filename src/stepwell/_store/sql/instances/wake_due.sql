-- Admit rows at their due time, and wake parked rows at their deadline; find the queues with work, and when to look
-- again.
-- Keeps: a row is due once. A deadline wakes, it does not fail: awaits and attempt stay. A locked row is left for the
--   next time. A row that was admitted is due again if the server loses the change: no wait for the disk.
-- Index: instances_due, instances_deadline; instances_claim and instances_fair, one probe each per queue of $1; queues;
--   those of interactions/_due.sql.
-- Locks: up to 1,000 due and 1,000 expired rows, skip locked.
-- Returns: one row: how many rows came due, their queues; the queues of $1 with claimable work; up to 100 rate limits
--   that may admit (buckets_next); which of $1 are paused, are fair (or have rows with a share left), and have rows for
--   fair_queues/migrate.sql; whether an interaction is overdue; the transports of $2 with something to send; the
--   seconds to the next due time (at most 0: a due row is locked elsewhere).
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
), due as materialized (
  select i.id
  from {schema}.instances i
  where i.status = 'runnable' and i.hold = 'due' and i.due_at <= {schema}.now()
  order by i.due_at
  limit 1000
  for no key update skip locked
), freed as (
  update {schema}.instances i
  set hold = null
  from due
  where i.id = any (array[due.id])
  returning i.queue
), expired as materialized (
  select i.id
  from {schema}.instances i
  where i.deadline <= {schema}.now() and i.status || '' = 'awaiting_signal'
  order by i.deadline
  limit 1000
  for no key update skip locked
), woken as (
  update {schema}.instances i
  set status = 'runnable', deadline = null, due_at = {schema}.now(), updated_at = {schema}.now()
  from expired e
  where i.id = any (array[e.id])
  returning i.queue
), flowing as materialized (
  -- Rate limits that may admit their next row.
  select b.key
  from {schema}.buckets b
  where b.next_at <= {schema}.now()
  order by b.next_at
  limit 100
), ripe as (
  select queue from freed
  union all
  select queue from woken
), served as materialized (
  -- The queues of this worker.
  select n.name, q.paused_at is not null as is_paused, q.fair_by is not null as is_fair,
         exists (select from {schema}.instances i
                 where i.queue = n.name and i.status = 'runnable' and i.hold is null and i.share is null
                 offset 0) as has_unshared,
         exists (select from {schema}.instances i
                 where i.queue = n.name and i.status = 'runnable' and i.hold is null and i.share is not null
                 offset 0) as has_shared
  from unnest($1::text[]) as n(name) left join {schema}.queues q on q.name = n.name
), {ctes interactions_due of interactions/_due}
)
select greatest((select count(*) from freed), (select count(*) from woken))::integer as freed,
       array(select distinct queue from ripe) as freed_queues,
       array(select s.name from served s where not s.is_paused and (s.has_unshared or s.has_shared)) as ready,
       array(select key from flowing) as flowing,
       array(select s.name from served s where s.is_paused) as paused,
       array(select s.name from served s where s.is_fair or s.has_shared) as fair,
       array(select s.name
             from served s
             where case when s.is_fair then s.has_unshared else s.has_shared end) as misplaced,
       d.has_late, d.to_send,
       extract(epoch from least((select i.due_at
                                 from {schema}.instances i
                                 where i.status = 'runnable' and i.hold = 'due' and i.id not in (select id from due)
                                 order by i.due_at
                                 limit 1),
                                (select i.deadline
                                 from {schema}.instances i
                                 where i.deadline is not null and i.id not in (select id from expired)
                                 order by i.deadline
                                 limit 1),
                                d.next_at,
                                (select b.next_at
                                 from {schema}.buckets b
                                 where b.next_at > {schema}.now()
                                 order by b.next_at
                                 limit 1))
                          - {schema}.now())::float8 as next_due
from unsynced cross join interactions_due d
