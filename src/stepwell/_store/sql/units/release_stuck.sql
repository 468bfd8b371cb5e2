-- Let go what should not be parked: instances that wait for a unit which has ended, or which is not there. Looks at up
-- to 500 parked rows after $1, so that everything is looked at in turn, whatever there is.
-- Keeps: the row is locked, and judged once more; who is being answered right now is locked by that, and passed over.
-- Index: instances_external, the primary key. Locks: the rows, skip locked.
-- Returns: one row: the last id that was looked at (null: the end), what was let go, and the queues.
with parked as materialized (
  select i.id, i.await_unit_id
  from stepwell.instances i
  where i.status = 'awaiting_external' and i.id > $1
  order by i.id
  limit 500
), stuck as materialized (
  select p.id
  from parked p
  where not exists (select from stepwell.await_units u
                    where u.id = p.await_unit_id and u.status || '' = 'waiting'
                    offset 0)
), locked as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any (array(select s.id from stuck s)) and i.status || '' = 'awaiting_external'
  order by i.id
  for no key update skip locked
), released as (
  update stepwell.instances i
  set status = 'runnable', due_at = stepwell.now(), updated_at = stepwell.now()
  from locked l
  where i.id = any (array[l.id]) and i.status || '' = 'awaiting_external'
    and not exists (select from stepwell.await_units u
                    where u.id = i.await_unit_id and u.status || '' = 'waiting'
                    offset 0)
  returning i.id, i.queue
)
select (select max(p.id) from parked p having count(*) = 500) as last, array(select r.id from released r) as ids,
       array(select distinct r.queue from released r) as queues
