-- Let rows whose time has come into the claim's index; tell which queues have work, and when to look again.
-- Keeps: a row is due once; a locked one is left for the next look.
-- Index: instances_due; instances_claim for one probe per queue of $1 (offset 0: never joined).
-- Locks: up to 1,000 due rows, skip locked.
-- Returns: one row: how many came due, their queues, the queues of $1 with work, seconds to the next due time
--   (not above 0: a row is due, and somebody holds it locked).
with due as materialized (
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
)
select (select count(*) from freed)::integer as freed,
       array(select distinct queue from freed) as freed_queues,
       array(select q.name
             from unnest($1::text[]) as q(name)
             where exists (select from stepwell.instances i
                           where i.queue = q.name and i.status = 'runnable' and i.hold is null
                           offset 0)) as ready,
       (select extract(epoch from i.due_at - stepwell.now())::float8
        from stepwell.instances i
        where i.status = 'runnable' and i.hold = 'due' and i.id not in (select due.id from due)
        order by i.due_at
        limit 1) as next_due
