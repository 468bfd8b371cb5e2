-- Let rows whose time has come into the claim's index, and wake parked ones whose deadline has passed; tell which
-- queues have work, and when to look again.
-- Keeps: a row is due once; a deadline is a wake, not a failure: awaits and attempt stay; a locked row is left for the
--   next look. What came due comes due again if the server loses it: no wait for the disk.
-- Index: instances_due, instances_deadline; instances_claim and instances_fair for one probe each per queue of $1
--   (offset 0: never joined); interactions_deadline, and interactions_dispatch per transport of $2; queues.
-- Locks: up to 1,000 due and 1,000 expired rows, skip locked.
-- Returns: one row: how many came due, their queues, the queues of $1 with work that may be claimed, up to 100 rate
--   limits whose line may go on (buckets_next); those of $1 that are paused, that are fair (or have rows left of when
--   they were), and that have rows to be brought over by shares/bring_over.sql; whether the time of a question is over;
--   the transports of $2 with something to send; the seconds to the next due time (not above 0: a row is due, and
--   somebody holds it locked).
with unsynced as materialized (
  select set_config('synchronous_commit', 'off', true)
), due as materialized (
  select i.id
  from stepwell.instances i
  where i.status = 'runnable' and i.hold = 'due' and i.due_at <= stepwell.now()
  order by i.due_at
  limit 1000
  for no key update skip locked
), freed as (
  update stepwell.instances i
  set hold = null
  from due
  where i.id = any (array[due.id])
  returning i.queue
), expired as materialized (
  select i.id
  from stepwell.instances i
  where i.deadline <= stepwell.now() and i.status || '' = 'awaiting_signal'
  order by i.deadline
  limit 1000
  for no key update skip locked
), woken as (
  update stepwell.instances i
  set status = 'runnable', deadline = null, due_at = stepwell.now(), updated_at = stepwell.now()
  from expired e
  where i.id = any (array[e.id])
  returning i.queue
), flowing as materialized (
  select b.key
  from stepwell.buckets b
  where b.next_at <= stepwell.now()
  order by b.next_at
  limit 100
), ripe as (
  select queue from freed
  union all
  select queue from woken
), served as materialized (
  select n.name, q.paused_at is not null as is_paused, q.fair_by is not null as is_fair,
         exists (select from stepwell.instances i
                 where i.queue = n.name and i.status = 'runnable' and i.hold is null and i.share is null
                 offset 0) as has_unshared,
         exists (select from stepwell.instances i
                 where i.queue = n.name and i.status = 'runnable' and i.hold is null and i.share is not null
                 offset 0) as has_shared
  from unnest($1::text[]) as n(name) left join stepwell.queues q on q.name = n.name
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
       exists (select from stepwell.interactions q
               where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline <= stepwell.now()
               order by q.deadline
               offset 0) as has_late,
       array(select n.name
             from unnest($2::text[]) as n(name)
             where exists (select from stepwell.interactions q
                           where q.transport = n.name and q.status = 'waiting' and q.next_at <= stepwell.now()
                           order by q.next_at
                           offset 0)) as to_send,
       extract(epoch from least((select i.due_at
                                 from stepwell.instances i
                                 where i.status = 'runnable' and i.hold = 'due' and i.id not in (select id from due)
                                 order by i.due_at
                                 limit 1),
                                (select i.deadline
                                 from stepwell.instances i
                                 where i.deadline is not null and i.id not in (select id from expired)
                                 order by i.deadline
                                 limit 1),
                                (select q.deadline
                                 from stepwell.interactions q
                                 where q.status in ('waiting', 'dispatching', 'dispatched')
                                   and q.deadline > stepwell.now()
                                 order by q.deadline
                                 limit 1),
                                (select min(f.next_at)
                                 from unnest($2::text[]) as n(name)
                                 cross join lateral (select q.next_at
                                                     from stepwell.interactions q
                                                     where q.transport = n.name and q.status = 'waiting'
                                                       and q.next_at > stepwell.now()
                                                     order by q.next_at
                                                     limit 1) f),
                                (select b.next_at
                                 from stepwell.buckets b
                                 where b.next_at > stepwell.now()
                                 order by b.next_at
                                 limit 1))
                          - stepwell.now())::float8 as next_due
from unsynced
