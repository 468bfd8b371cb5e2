-- Wake parked instances that wait for a unit which has ended, or does not exist. Looks at up to 500 parked rows after
-- $1, so that repeated calls reach all of them.
-- Keeps: the row is locked and judged again; a row is locked elsewhere, and skipped, while one of its interactions is
--   being completed.
-- Index: instances_external, the primary key.
-- Locks: the rows, skip locked.
-- Returns: one row: the last id that was looked at (null: the end), the woken rows, and their queues.
with parked as materialized (
  select i.id, i.await_unit_id
  from {schema}.instances i
  where i.status = 'awaiting_external' and i.id > $1
  order by i.id
  limit 500
), stuck as materialized (
  select p.id
  from parked p
  where not exists (select from {schema}.await_units u
                    where u.id = p.await_unit_id and u.status || '' = 'waiting'
                    offset 0)
), locked as materialized (
  select i.id
  from {schema}.instances i
  where i.id = any (array(select s.id from stuck s)) and i.status || '' = 'awaiting_external'
  order by i.id
  for no key update skip locked
), released as (
  update {schema}.instances i
  set status = 'runnable', due_at = {schema}.now(), updated_at = {schema}.now()
  from locked l
  where i.id = any (array[l.id]) and i.status || '' = 'awaiting_external'
    and not exists (select from {schema}.await_units u
                    where u.id = i.await_unit_id and u.status || '' = 'waiting'
                    offset 0)
  returning i.id, i.queue
)
select (select max(p.id) from parked p having count(*) = 500) as last, array(select r.id from released r) as ids,
       array(select distinct r.queue from released r) as queues
